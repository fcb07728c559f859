"""Folders, zips and tars are read alike; broken ones are one line."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from refiner.data.readers import archive
from refiner.data.readers.archive import gather, open_files
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
def place(request: pytest.FixtureRequest, tmp_path: Path, spread: Write, packed: Write, tar: Write) -> Path:
    if request.param == "folder":
        return spread(tmp_path / "folder", FILES)
    return packed(tmp_path / "a.zip", FILES) if request.param == "zip" else tar(tmp_path / "a.tar.gz", FILES)


def test_all_are_read_alike(place: Path) -> None:
    files = open_files(place, lambda name: name.endswith(".txt"))
    assert files.names == ["top/a.txt", "top/in/b.txt"]
    assert [files.read(name) for name in files.names] == [b"a", b"bb"]
    assert files.label("top/a.txt") == f"{place}/top/a.txt"


def test_gather_looks_one_folder_down(place: Path) -> None:
    assert gather(place, ["a.txt", "d.bin"]) == {"a.txt": b"a", "d.bin": b"d"}
    assert gather(place, ["b.txt"]) is None
    with pytest.raises(DataError, match=r"x\.txt, y\.txt missing"):
        gather(place, ["a.txt", "x.txt", "y.txt"])


def test_links_and_devices_of_a_tar_are_left_out(tmp_path: Path) -> None:
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
def test_a_truncated_archive_is_named(name: str, tmp_path: Path, tar: Write, packed: Write) -> None:
    noise = bytes(range(256)) * 400
    file = (packed if name.endswith("zip") else tar)(tmp_path / name, {"a.txt": noise, "b.txt": noise})
    whole = file.read_bytes()
    for end in (0, 10, len(whole) // 2, len(whole) - 20)[: 3 if name == "a.tar" else 4]:
        file.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"a\.\w+.*: a broken or truncated archive \(") as told:
            gather(file, ["a.txt", "b.txt"])
        assert "\n" not in str(told.value)


def test_what_would_fill_the_memory_is_refused(
    tmp_path: Path, tar: Write, packed: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MOST", 10)
    for write, name in ((tar, "a.tgz"), (packed, "a.zip")):
        file = write(tmp_path / name, {"a.txt": b"x" * 11})
        with pytest.raises(DataError, match="once unpacked"):
            gather(file, ["a.txt"])
