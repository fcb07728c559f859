"""Downloads from a real server on loopback and its faults: a file is complete and verified, or not there."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refiner.data import download as module
from refiner.data.download import PublishedFile, download
from refiner.errors import DataError

CONTENT = os.urandom(700_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def published(server: Any) -> PublishedFile:
    server.content = CONTENT
    return PublishedFile("archive.tar.gz", MD5, "its page", server.url)


@pytest.fixture
def fetch(published: PublishedFile, tmp_path: Path) -> Callable[[], Path]:
    return lambda: download(published, tmp_path / "downloads", pause=0, timeout=5)


def file_names(tmp_path: Path) -> list[str]:
    folder = tmp_path / "downloads"
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def test_file_is_downloaded_and_not_requested_again(
    published: PublishedFile, tmp_path: Path, server: Any
) -> None:
    steps: list[tuple[str, int, int]] = []
    file = download(published, tmp_path / "downloads", lambda *a: steps.append(a))
    assert file.read_bytes() == CONTENT and file_names(tmp_path) == ["archive.tar.gz"]
    assert steps[-1] == ("downloading archive.tar.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    # The file exists: there is no second request.
    assert download(published, tmp_path / "downloads") == file and server.asked == [""]


def test_redirect_is_followed(published: PublishedFile, tmp_path: Path, server: Any) -> None:
    moved = PublishedFile(
        published.name, published.md5, published.publisher, server.url.replace("/file", "/moved")
    )
    assert download(moved, tmp_path).read_bytes() == CONTENT


def test_interrupted_download_is_resumed(fetch: Callable[[], Path], server: Any) -> None:
    server.cuts = [300_000, 0, 100_000]
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["", "bytes=300000-", "bytes=300000-", "bytes=400000-"]


def test_part_of_an_earlier_run_is_resumed(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "archive.tar.gz.part").write_bytes(CONTENT[:123])
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["bytes=123-"] and file_names(tmp_path) == ["archive.tar.gz"]


def test_complete_part_is_used(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "archive.tar.gz.part").write_bytes(CONTENT)
    assert fetch().read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_too_long_part_is_downloaded_again(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "archive.tar.gz.part").write_bytes(CONTENT + b"more")
    assert fetch().read_bytes() == CONTENT
    assert server.asked[1:] == [""]


def test_server_without_ranges_starts_again(fetch: Callable[[], Path], server: Any) -> None:
    server.ranges, server.cuts = False, [400_000]
    assert fetch().read_bytes() == CONTENT
    assert server.asked == ["", "bytes=400000-"]


def test_server_without_content_length(fetch: Callable[[], Path], server: Any) -> None:
    server.chunked, server.cuts = True, [400_000]
    assert fetch().read_bytes() == CONTENT


@pytest.mark.hostile
@pytest.mark.parametrize("length", ["many", "-5", "1e9", "²"])
def test_a_malformed_content_length_is_ignored(length: str, fetch: Callable[[], Path], server: Any) -> None:
    server.ranges, server.length = False, length
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_download_stops_after_repeated_interruptions(
    ranges: bool, fetch: Callable[[], Path], server: Any, tmp_path: Path
) -> None:
    server.ranges, server.cuts = ranges, [1000, *[0] * 50] if ranges else [1000] * 50
    message = (
        r"http.*: the connection was interrupted after 1,000 bytes; the same command resumes the download"
    )
    with pytest.raises(DataError, match=message):
        fetch()
    assert file_names(tmp_path) == ["archive.tar.gz.part"] and len(server.asked) == 5
    server.cuts = []
    assert fetch().read_bytes() == CONTENT


def test_too_large_content_length(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.ranges, server.length = False, len(CONTENT) + 5
    with pytest.raises(DataError, match="the connection was interrupted after 700,001 bytes"):
        fetch()
    assert file_names(tmp_path) == ["archive.tar.gz.part"]


def test_too_small_content_length(fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.length = 1000
    with pytest.raises(DataError, match=rf"MD5 \w+, but its page publishes {MD5}; the download is kept as"):
        fetch()
    assert not (tmp_path / "downloads" / "archive.tar.gz").exists()


def test_file_with_a_wrong_checksum_is_renamed(
    fetch: Callable[[], Path], server: Any, tmp_path: Path
) -> None:
    server.content = b"another file"
    md5 = hashlib.md5(b"another file").hexdigest()
    wrong = tmp_path / "downloads" / f"archive.tar.gz.wrong-{md5[:8]}"
    with pytest.raises(DataError) as error:
        fetch()
    assert str(error.value) == (
        f"{server.url}: MD5 {md5}, but its page publishes {MD5}; the download is kept as {wrong}"
    )
    assert file_names(tmp_path) == [wrong.name] and wrong.read_bytes() == b"another file"
    # The next download starts again and keeps that file.
    server.content = CONTENT
    assert fetch().read_bytes() == CONTENT
    assert file_names(tmp_path) == ["archive.tar.gz", wrong.name]


def test_existing_file_is_verified(fetch: Callable[[], Path], server: Any) -> None:
    file = fetch()
    file.write_bytes(b"changed")
    with pytest.raises(DataError, match=f"MD5 .*, but its page publishes {MD5}"):
        fetch()
    assert file.read_bytes() == b"changed"


@pytest.mark.parametrize("status", [403, 404, 500])
def test_http_error_raises(status: int, fetch: Callable[[], Path], server: Any, tmp_path: Path) -> None:
    server.status = status
    with pytest.raises(DataError, match=f"file: HTTP {status} "):
        fetch()
    assert file_names(tmp_path) == []


def test_unreachable_server_raises(tmp_path: Path, server: Any, published: PublishedFile) -> None:
    server.http.server_close()
    with pytest.raises(DataError, match=r"file: can't be reached \(.*\)$") as caught:
        download(published, tmp_path, pause=0)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"\.invalid/a: can't be reached \("):
        download(PublishedFile("a", MD5, "no one", "http://nowhere.invalid/a"), tmp_path, pause=0)


def test_unreachable_server_keeps_the_part(tmp_path: Path, server: Any, published: PublishedFile) -> None:
    (tmp_path / "archive.tar.gz.part").write_bytes(CONTENT[:5])
    server.http.server_close()
    with pytest.raises(DataError, match="after 5 bytes; the same command resumes the download"):
        download(published, tmp_path, pause=0)
    assert (tmp_path / "archive.tar.gz.part").read_bytes() == CONTENT[:5]


def test_missing_disk_space_raises_before_the_download(
    fetch: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(
        DataError, match=r"archive\.tar\.gz: needs 700,001 bytes in .*only 1,000 bytes are free"
    ):
        fetch()
    assert file_names(tmp_path) == []


def test_full_disk_keeps_the_part(
    fetch: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_block = module._read_block
    calls: list[int] = []

    def full(response: Any) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            # As a full disk raises it while the file is written.
            raise DiskFull(errno.ENOSPC, "No space left on device")
        return read_block(response)

    class DiskFull(OSError):
        pass

    monkeypatch.setattr(module, "_read_block", full)
    with pytest.raises(DataError, match=r"archive\.tar\.gz\.part: no space left on the disk"):
        fetch()
    assert file_names(tmp_path) == ["archive.tar.gz.part"]
    monkeypatch.setattr(module, "_read_block", read_block)
    assert fetch().read_bytes() == CONTENT
