"""A lock between processes, which ends with the process that holds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from refiner.data.disk_space import disk_errors
from refiner.errors import DataError
from refiner.files import file_error


@contextmanager
def exclusive_lock(file: Path, name: str) -> Iterator[None]:
    """Holds a lock on `file`; raises if another process holds it. `name` is the dataset, for the error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with exclusive_lock(Path(folder) / "lock", "a"), exclusive_lock(Path(folder) / "lock", "a"):
    ...         pass
    Traceback (most recent call last):
    refiner.errors.DataError: a: another process is fetching it; wait until it has finished
    """
    lock = FileLock(file)
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise DataError(
                f"{name}: another process is fetching it; wait until it has finished",
                field="name",
                value=name,
                expected="no other process that fetches it",
            ) from None
        except NotImplementedError as error:
            raise file_error(
                file, "the file system does not support locks", "a file system that supports locks"
            ) from error
    try:
        yield
    finally:
        lock.release()
