"""Folders, zips and tars are read the same way; broken archives raise one-line errors."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from refiner.data.readers import archive
from refiner.data.readers.archive import find_named_files, open_files
from refiner.errors import DataError

Write = Callable[[Path, Mapping[str, bytes]], Path]
FILES = {
    "top/a.txt": b"a",
    "top/in/b.txt": b"bb",
    "top/.hidden.txt": b"h",
    ".git/c.txt": b"c",
    "top/d.bin": b"d",
}


@pytest.fixture(params=["folder", "zip", "tar"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, write_files: Write, write_zip: Write, write_tar: Write
) -> Path:
    if request.param == "folder":
        return write_files(tmp_path / "folder", FILES)
    return (
        write_zip(tmp_path / "a.zip", FILES)
        if request.param == "zip"
        else write_tar(tmp_path / "a.tar.gz", FILES)
    )


def test_folders_and_archives_are_read_the_same_way(place: Path) -> None:
    files = open_files(place, lambda name: name.endswith(".txt"))
    assert files.names == ["top/a.txt", "top/in/b.txt"]
    assert [files.read(name) for name in files.names] == [b"a", b"bb"]
    assert files.title("top/a.txt") == f"{place}/top/a.txt"


def test_named_files_are_found_one_folder_down(place: Path) -> None:
    files = find_named_files(place, ["a.txt", "d.bin"])
    assert files is not None
    assert {name: files.read(name) for name in files.names} == {"a.txt": b"a", "d.bin": b"d"}
    assert find_named_files(place, ["b.txt"]) is None
    with pytest.raises(DataError, match=r"x\.txt, y\.txt missing"):
        find_named_files(place, ["a.txt", "x.txt", "y.txt"])


def test_links_and_devices_of_a_tar_are_ignored(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("pipe", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hostname"
            out.addfile(member)
        member = tarfile.TarInfo("./own")
        member.size = 3
        out.addfile(member, io.BytesIO(b"own"))
    files = open_files(tmp_path / "a.tar", lambda name: True)
    assert files.names == ["own"] and files.read("own") == b"own"


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tgz", "a.tar"])
def test_truncated_archive_raises(name: str, tmp_path: Path, write_tar: Write, write_zip: Write) -> None:
    noise = bytes(range(256)) * 400
    file = (write_zip if name.endswith("zip") else write_tar)(
        tmp_path / name, {"a.txt": noise, "b.txt": noise}
    )
    content = file.read_bytes()
    for end in (0, 10, len(content) // 2, len(content) - 20)[: 3 if name == "a.tar" else 4]:
        file.write_bytes(content[:end])
        with pytest.raises(DataError, match=r"a\.\w+.*: a broken or truncated archive \(") as caught:
            find_named_files(file, ["a.txt", "b.txt"])
        assert "\n" not in str(caught.value)


def test_archive_that_would_fill_the_memory_raises(
    tmp_path: Path, write_tar: Write, write_zip: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MAX_FILE_BYTES", 10)
    for write, name in ((write_tar, "a.tgz"), (write_zip, "a.zip")):
        file = write(tmp_path / name, {"a.txt": b"x" * 11})
        with pytest.raises(DataError, match="once unpacked"):
            find_named_files(file, ["a.txt"])
