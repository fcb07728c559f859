"""Free disk space is checked before large writes, and errors of the disk are one line."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refiner.errors import DataError
from refiner.files import file_error


def format_bytes(size: int) -> str:
    """A number of bytes with its unit.

    >>> format_bytes(170_498_071), format_bytes(1_200_000_000), format_bytes(512)
    ('170.5 MB', '1.2 GB', '512 bytes')
    """
    if size < 1_000_000:
        return f"{size:,} bytes"
    return f"{size / 1e6:.1f} MB" if size < 1_000_000_000 else f"{size / 1e9:.1f} GB"


def require_free_space(folder: Path, size: int, name: str) -> None:
    """Raises if `folder` has fewer than `size` bytes of free space; `name` is what would be written.

    >>> require_free_space(Path(), 10**18, "cifar10")
    Traceback (most recent call last):
    refiner.errors.DataError: cifar10: needs 1000000000.0 GB in ., but only ... are free
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"{name}: needs {format_bytes(size)} in {folder}, but only {format_bytes(free)} are free",
            field="folder",
            value=str(folder),
            expected=f"{format_bytes(size)} of free space",
        )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns an OSError into a DataError of one line that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise file_error(path, "no space left on the disk", "free space on the disk") from error
        raise file_error(
            path, f"can't be written ({error.strerror or error})", "a path that can be written"
        ) from error
