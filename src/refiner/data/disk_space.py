"""Room on the disk: asked for before much is written, and named where it ran out."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refiner.errors import DataError


def size_in_words(size: int) -> str:
    """A number of bytes to read.

    >>> size_in_words(170_498_071), size_in_words(1_200_000_000), size_in_words(512)
    ('170.5 MB', '1.2 GB', '512 bytes')
    """
    if size < 1_000_000:
        return f"{size:,} bytes"
    return f"{size / 1e6:.1f} MB" if size < 1_000_000_000 else f"{size / 1e9:.1f} GB"


def need_room(folder: Path, size: int, what: str) -> None:
    """Refuse to begin what would not fit: `size` bytes in `folder`.

    >>> need_room(Path(), 10**18, "cifar10")
    Traceback (most recent call last):
    refiner.errors.DataError: cifar10: needs 1000000000.0 GB in ., but ... are free
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"{what}: needs {size_in_words(size)} in {folder}, but {size_in_words(free)} are free"
        )


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """An error of the disk as one line that names the place."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"{place}: no room left on the disk") from error
        raise DataError(f"{place}: can't be written ({error.strerror or error})") from error
