"""Downloads from official addresses: resumed after an interruption and verified against a published MD5."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from refiner._version import __version__
from refiner.data.disk_space import disk_errors, format_bytes, require_free_space
from refiner.errors import DataError
from refiner.files import file_error

_BLOCK = 2**18
_MAX_FAILURES = 4  # in a row without a single new byte
_MAX_ATTEMPTS = 100
Progress = Callable[[str, int, int], None]


class _InterruptedError(Exception):
    """The connection ended before the file was complete."""


@dataclass(frozen=True)
class PublishedFile:
    """A file with a published checksum, and its official address if it still has one."""

    name: str
    md5: str
    publisher: str
    """Who publishes the checksum."""
    url: str = ""


def file_md5(file: Path) -> str:
    """The MD5 of a file, the checksum that most dataset authors publish."""
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def verify_md5(published: PublishedFile, file: Path) -> None:
    """Raises if a file does not have its published checksum.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "train_32x32.mat"
    ...     _ = file.write_text("truncated")
    ...     verify_md5(PublishedFile("train_32x32.mat", "e26d", "torchvision"), file)
    Traceback (most recent call last):
    refiner.errors.DataError: ...train_32x32.mat: MD5 ..., but torchvision publishes e26d
    """
    md5 = file_md5(file)
    if md5 != published.md5:
        raise file_error(
            file, f"MD5 {md5}, but {published.publisher} publishes {published.md5}", f"MD5 {published.md5}"
        )


def download(
    published: PublishedFile,
    folder: Path,
    on_progress: Progress | None = None,
    *,
    pause: float = 1.0,
    timeout: float = 60,
) -> Path:
    """Downloads a file into `folder`, unless it is there already, and returns its path.

    An incomplete download stays in `FILE.part` and is resumed by the next call. A file with a wrong checksum
    is renamed to `FILE.wrong-…`.
    """
    target = folder / published.name
    part = target.with_name(target.name + ".part")
    if not target.exists():
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _download_to(published, part, on_progress, pause, timeout)
        md5 = file_md5(part)
        if md5 != published.md5:
            wrong = target.with_name(f"{target.name}.wrong-{md5[:8]}")
            with disk_errors(wrong):
                os.replace(part, wrong)
            raise DataError(
                f"{published.url}: MD5 {md5}, but {published.publisher} publishes {published.md5}; "
                f"the download is kept as {wrong}",
                field="url",
                value=published.url,
                expected=f"MD5 {published.md5}",
            )
        with disk_errors(target):
            os.replace(part, target)
    else:
        verify_md5(published, target)
    return target


def _download_to(
    published: PublishedFile, part: Path, on_progress: Progress | None, pause: float, timeout: float
) -> None:
    """Downloads the complete file to `part`, resuming and retrying after interruptions."""
    failures = 0
    for _ in range(_MAX_ATTEMPTS):
        size_before, reason = _size(part), "the connection was interrupted"
        try:
            if _resume(published, part, size_before, on_progress, timeout):
                return
        except _InterruptedError:
            pass
        except urllib.error.HTTPError as error:
            error.close()
            raise DataError(
                f"{published.url}: HTTP {error.code} {error.reason}",
                field="url",
                value=published.url,
                expected="a file that the server sends",
            ) from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            text = getattr(cause, "strerror", None) or cause or type(cause).__name__
            reason = " ".join(str(text).split())
            if not size_before:
                raise DataError(
                    f"{published.url}: can't be reached ({reason})",
                    field="url",
                    value=published.url,
                    expected="a server that can be reached",
                ) from error
        failures = 0 if _size(part) > size_before else failures + 1
        if failures >= _MAX_FAILURES:
            break
        time.sleep(pause * failures)
    raise DataError(
        f"{published.url}: {reason} after {format_bytes(_size(part))}; the same command resumes the download",
        field="url",
        value=published.url,
        expected="a complete download",
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _resume(
    published: PublishedFile, part: Path, size: int, on_progress: Progress | None, timeout: float
) -> bool:
    """Requests what follows the first `size` bytes; returns whether the file is now complete."""
    request = urllib.request.Request(published.url, headers={"User-Agent": f"refiner/{__version__}"})
    if size:
        request.add_header("Range", f"bytes={size}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not size:
            raise
        error.close()
        # There is nothing after the bytes at hand: the file is complete, or it is another file.
        complete = error.headers.get("Content-Range", "").rpartition("/")[2] == str(size)
        if not complete:
            part.unlink()
        return complete
    with response:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            start, total = _parse_range(response.headers.get("Content-Range", ""))
            if start != size:
                part.unlink()
                return False
        else:  # a server without support for ranges sends the complete file
            length = response.headers.get("Content-Length", "")
            size, total = 0, int(length) if length.isdecimal() else 0
        require_free_space(part.parent, max(0, total - size), published.name)
        with disk_errors(part), part.open("ab" if size else "wb") as stream:
            while block := _read_block(response):
                stream.write(block)
                size += len(block)
                if on_progress:
                    on_progress(f"downloading {published.name}", size, total)
    return size == total if total else True


def _read_block(response: http.client.HTTPResponse) -> bytes:
    # Translated here, so that a broken connection is not reported as an error of the disk.
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError from error


def _parse_range(header: str) -> tuple[int, int]:
    """The first byte and the total size from `bytes 5-9/10`; (-1, 0) if the header has another form."""
    positions, _, total = header.removeprefix("bytes ").partition("/")
    start = positions.partition("-")[0]
    return (int(start), int(total)) if start.isdecimal() and total.isdecimal() else (-1, 0)
