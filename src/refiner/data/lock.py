"""One process at a time: a lock that ends with the process that holds it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refiner.data.disk_space import writing
from refiner.errors import DataError

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def alone(file: Path, what: str) -> Iterator[None]:
    """Hold a lock on `file`, which stays behind, empty; refuse if another process holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with alone(Path(folder) / "lock", "cifar10"), alone(Path(folder) / "lock", "cifar10"):
    ...         pass
    Traceback (most recent call last):
    refiner.errors.DataError: cifar10: another process is getting it; wait until it is done
    """
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _take(descriptor)
        except OSError:
            raise DataError(f"{what}: another process is getting it; wait until it is done") from None
        yield
    finally:
        os.close(descriptor)
