"""Files from their official address: resumed where they were cut off, checked, and whole or not there."""

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
from refiner.data.disk_space import need_room, size_in_words, writing
from refiner.errors import DataError

_PIECE = 2**18
_TRIES = 4  # in a row without a single new byte
_TRIES_IN_ALL = 100
Progress = Callable[[str, int, int], None]


class _CutError(Exception):
    """The connection ended before the file did."""


@dataclass(frozen=True)
class Published:
    """A file, the checksum that is published for it, and its official address, if it still has one."""

    file: str
    md5: str
    by: str
    """Who publishes the checksum."""
    url: str = ""


def md5_of(file: Path) -> str:
    """The MD5 of a file, as the publishers of data sets give it."""
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def check(item: Published, file: Path) -> None:
    """Refuse a file that bears a published name and has another checksum.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "train_32x32.mat"
    ...     _ = file.write_text("cut")
    ...     check(Published("train_32x32.mat", "e26d", "torchvision"), file)
    Traceback (most recent call last):
    refiner.errors.DataError: ...train_32x32.mat: MD5 ..., but torchvision publishes e26d
    """
    found = md5_of(file)
    if found != item.md5:
        raise DataError(f"{file}: MD5 {found}, but {item.by} publishes {item.md5}")


def download(
    item: Published,
    folder: Path,
    on_progress: Progress | None = None,
    *,
    pause: float = 1.0,
    timeout: float = 60,
) -> Path:
    """Fetch a file into `folder`, or take the one that is there; `FILE.part` is what a broken run left.

    A file whose checksum is wrong is kept aside as `FILE.wrong-…`, never under its own name.
    """
    target = folder / item.file
    part = target.with_name(target.name + ".part")
    if not target.exists():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _fetch(item, part, on_progress, pause, timeout)
        found = md5_of(part)
        if found != item.md5:
            aside = target.with_name(f"{target.name}.wrong-{found[:8]}")
            with writing(aside):
                os.replace(part, aside)
            raise DataError(
                f"{item.url}: MD5 {found}, but {item.by} publishes {item.md5}; what came is kept as {aside}"
            )
        with writing(target):
            os.replace(part, target)
    else:
        check(item, target)
    return target


def _fetch(item: Published, part: Path, on_progress: Progress | None, pause: float, timeout: float) -> None:
    """Bring the whole file to `part`, going on from what is there, with some patience."""
    idle = 0
    for _ in range(_TRIES_IN_ALL):
        before, reason = _size(part), "the connection was cut"
        try:
            if _continue(item, part, before, on_progress, timeout):
                return
        except _CutError:
            pass
        except urllib.error.HTTPError as error:
            error.close()
            raise DataError(f"{item.url}: HTTP {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            told = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = " ".join(str(getattr(told, "strerror", None) or told or type(told).__name__).split())
            if not before:
                raise DataError(f"{item.url}: can't be reached ({reason})") from error
        idle = 0 if _size(part) > before else idle + 1
        if idle >= _TRIES:
            break
        time.sleep(pause * idle)
    raise DataError(
        f"{item.url}: {reason} after {size_in_words(_size(part))}; they are kept, the same command goes on"
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _continue(item: Published, part: Path, have: int, on_progress: Progress | None, timeout: float) -> bool:
    """Ask for what is missing; whether all of it came."""
    request = urllib.request.Request(item.url, headers={"User-Agent": f"refiner/{__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        error.close()
        # Nothing lies behind what is there: it is all, or it is of another file.
        whole = error.headers.get("Content-Range", "").rpartition("/")[2] == str(have)
        if not whole:
            part.unlink()
        return whole
    with response:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            start, total = _range(response.headers.get("Content-Range", ""))
            if start != have:
                part.unlink()
                return False
        else:  # a server that knows no ranges sends it all
            have, total = 0, int(response.headers.get("Content-Length") or 0)
        need_room(part.parent, max(0, total - have), item.file)
        with writing(part), part.open("ab" if have else "wb") as stream:
            while piece := _read(response):
                stream.write(piece)
                have += len(piece)
                if on_progress:
                    on_progress(f"fetching {item.file}", have, total)
    return have == total if total else True


def _read(response: http.client.HTTPResponse) -> bytes:
    # Here, so that a broken connection is not taken for a broken disk.
    try:
        return response.read(_PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise _CutError from error


def _range(header: str) -> tuple[int, int]:
    """First byte and size of the whole from `bytes 5-9/10`."""
    places, _, total = header.removeprefix("bytes ").partition("/")
    start = places.partition("-")[0]
    return (int(start), int(total)) if start.isdigit() and total.isdigit() else (-1, 0)
