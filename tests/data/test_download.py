"""A real server on loopback, and everything it can do wrong: a file is whole and right, or not there."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refiner.data import download as module
from refiner.data.download import Published, download
from refiner.errors import DataError

CONTENT = os.urandom(700_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def item(server: Any) -> Published:
    server.content = CONTENT
    return Published("archive.tar.gz", MD5, "its page", server.url)


@pytest.fixture
def fetch(item: Published, tmp_path: Path) -> Callable[[], Path]:
    return lambda: download(item, tmp_path / "downloads", pause=0, timeout=5)


def names(tmp_path: Path) -> list[str]:
    folder = tmp_path / "downloads"
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def test_a_file_comes_whole(item: Published, tmp_path: Path, server: Any) -> None:
    told: list[tuple[str, int, int]] = []
    file = download(item, tmp_path / "downloads", lambda *a: told.append(a))
    assert file.read_bytes() == CONTENT and names(tmp_path) == ["archive.tar.gz"]
    assert told[-1] == ("fetching archive.tar.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    # It is there: no one is asked again.
    assert download(item, tmp_path / "downloads") == file and server.asked == [""]


def test_an_address_that_moved(item: Published, tmp_path: Path, server: Any) -> None:
    moved = Published(item.file, item.md5, item.by, server.url.replace("/file", "/moved"))
    assert download(moved, tmp_path).read_bytes() == CONTENT


def test_a_cut_is_gone_on_from(fetch: Callable[[], Path], server: Any) -> None:
    server.cuts = [300_000, 0, 100_000]
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["", "bytes=300000-", "bytes=300000-", "bytes=400000-"]


def test_what_an_earlier_run_left_is_gone_on_from(
    fetch: Callable[[], Path], server: Any, tmp_path: Path
) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "archive.tar.gz.part").write_bytes(CONTENT[:123])
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["bytes=123-"] and names(tmp_path) == ["archive.tar.gz"]


def test_a_part_that_is_all_of_it(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "archive.tar.gz.part").write_bytes(CONTENT)
    assert fetch().read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_a_part_that_is_too_long_is_begun_anew(
    fetch: Callable[[], Path], server: Any, tmp_path: Path
) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "archive.tar.gz.part").write_bytes(CONTENT + b"more")
    assert fetch().read_bytes() == CONTENT
    assert server.asked[1:] == [""]


def test_a_server_without_ranges_begins_anew(fetch: Callable[[], Path], server: Any) -> None:
    server.ranges, server.cuts = False, [400_000]
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["", "bytes=400000-"]


def test_a_server_that_tells_no_length(fetch: Callable[[], Path], server: Any) -> None:
    server.chunked, server.cuts = True, [400_000]
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_that_always_cuts_is_given_up(
    ranges: bool, fetch: Callable[[], Path], server: Any, tmp_path: Path
) -> None:
    server.ranges, server.cuts = ranges, [1000, *[0] * 50] if ranges else [1000] * 50
    told = r"http.*: the connection was cut after 1,000 bytes; they are kept, the same command goes on"
    with pytest.raises(DataError, match=told):
        fetch()
    assert names(tmp_path) == ["archive.tar.gz.part"] and len(server.asked) == 5
    server.cuts = []
    assert fetch().read_bytes() == CONTENT


def test_a_length_that_is_too_large(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.ranges, server.length = False, len(CONTENT) + 5
    with pytest.raises(DataError, match="the connection was cut after 700,001 bytes"):
        fetch()
    assert names(tmp_path) == ["archive.tar.gz.part"]


def test_a_length_that_is_too_small(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.length = 1000
    with pytest.raises(DataError, match=rf"MD5 \w+, but its page publishes {MD5}; what came is kept as"):
        fetch()
    assert not (tmp_path / "downloads" / "archive.tar.gz").exists()


def test_a_wrong_checksum_is_kept_aside(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.content = b"another file"
    found = hashlib.md5(b"another file").hexdigest()
    aside = tmp_path / "downloads" / f"archive.tar.gz.wrong-{found[:8]}"
    with pytest.raises(DataError) as error:
        fetch()
    assert str(error.value) == (
        f"{server.url}: MD5 {found}, but its page publishes {MD5}; what came is kept as {aside}"
    )
    assert names(tmp_path) == [aside.name] and aside.read_bytes() == b"another file"
    # The next one begins anew, and leaves what was kept.
    server.content = CONTENT
    assert fetch().read_bytes() == CONTENT
    assert names(tmp_path) == ["archive.tar.gz", aside.name]


def test_a_file_that_is_there_is_checked_too(fetch: Callable[[], Path], server: Any) -> None:
    file = fetch()
    file.write_bytes(b"changed")
    with pytest.raises(DataError, match=f"MD5 .*, but its page publishes {MD5}"):
        fetch()
    assert file.read_bytes() == b"changed"


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_is_named(status: int, fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.status = status
    with pytest.raises(DataError, match=f"file: HTTP {status} "):
        fetch()
    assert names(tmp_path) == []


def test_offline_is_named(tmp_path: Path, server: Any, item: Published) -> None:
    server.http.server_close()
    with pytest.raises(DataError, match=r"file: can't be reached \(.*\)$") as told:
        download(item, tmp_path, pause=0)
    assert "\n" not in str(told.value)
    with pytest.raises(DataError, match=r"\.invalid/a: can't be reached \("):
        download(Published("a", MD5, "no one", "http://nowhere.invalid/a"), tmp_path, pause=0)


def test_offline_in_the_middle_keeps_the_part(tmp_path: Path, server: Any, item: Published) -> None:
    (tmp_path / "archive.tar.gz.part").write_bytes(CONTENT[:5])
    server.http.server_close()
    with pytest.raises(DataError, match="after 5 bytes; they are kept, the same command goes on"):
        download(item, tmp_path, pause=0)
    assert (tmp_path / "archive.tar.gz.part").read_bytes() == CONTENT[:5]


def test_no_room_is_told_before_it_begins(
    fetch: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match=r"archive\.tar\.gz: needs 700,001 bytes in .*1,000 bytes are free"):
        fetch()
    assert names(tmp_path) == []


def test_a_disk_that_fills_up_keeps_the_part(
    fetch: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = module._read
    calls: list[int] = []

    def full(response: Any) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            # As the disk says it, in the middle of writing.
            raise DiskFull(errno.ENOSPC, "No space left on device")
        return whole(response)

    class DiskFull(OSError):
        pass

    monkeypatch.setattr(module, "_read", full)
    with pytest.raises(DataError, match=r"archive\.tar\.gz\.part: no room left on the disk"):
        fetch()
    assert names(tmp_path) == ["archive.tar.gz.part"]
    monkeypatch.setattr(module, "_read", whole)
    assert fetch().read_bytes() == CONTENT
