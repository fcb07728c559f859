"""Files: errors that name one, and writing in one step, so that a killed run never leaves half of a file."""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from refiner.errors import DataError


def short_reason(error: BaseException) -> str:
    """The text of an error about a file on one line of at most 120 characters, without quoted content.

    >>> short_reason(ValueError("File name in directory 'a.npy' and header b'secret' differ."))
    "File name in directory 'a.npy' and header …"
    """
    text = re.sub(r"\bb(['\"]).*", "…", " ".join(str(error).split()))
    return text if len(text) <= 120 else f"{text[:119]}…"


def file_error(path: str | os.PathLike[str], problem: str, expected: str) -> DataError:
    """The error for a file or folder, with its path as `value`.

    Args:
        path: The file or folder.
        problem: What is wrong with it, in a few words.
        expected: What it should have been.

    Returns:
        The error, to be raised.

    >>> error = file_error("a.npz", "no such file", "an existing file")
    >>> print(error, (error.field, error.value, error.expected))
    a.npz: no such file ('path', 'a.npz', 'an existing file')
    """
    return DataError(f"{path}: {problem}", field="path", value=str(path), expected=expected)


def write_atomically(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> Path:
    """Write `content` to a temporary file in the same folder, then rename it to `path` in one step.

    Args:
        path: Where to; missing folders are made, and an existing file is replaced. Stricter permissions that
            it has are kept.
        content: The whole content.
        private: For files with a client's data, secrets or state: only the owner can read them, and they are
            on the disk when this returns.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written, or `path` is something else than a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "a.txt", b"whole").read_bytes()
    b'whole'
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o600 if private else 0o666
        if target.exists():
            if not target.is_file():
                raise file_error(path, "not a regular file", "a path that can be written")
            mode &= target.stat().st_mode
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            if private:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, target)
        if private:
            _sync_folder(target.parent)
    except OSError as error:
        problem = f"can't be written ({error.strerror or error})"
        raise file_error(path, problem, "a path that can be written") from error
    finally:
        # A failed clean-up must not hide the first error.
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return Path(path)


def create_private(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, unless there is one: of two at once, one wins whole.

    Raises:
        DataError: The file can't be created.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     create_private(Path(folder) / "secret", b"first")
    ...     create_private(Path(folder) / "secret", b"second")
    ...     (Path(folder) / "secret").read_bytes()
    b'first'
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_atomically(part, content, private=True)
    try:
        os.link(part, path)
        _sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        problem = f"can't be created ({error.strerror or error})"
        raise file_error(path, problem, "a path that can be written") from error
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path, busy: Exception) -> Iterator[None]:
    """Hold the lock of a folder; `busy` is raised if another process holds it. Released however it ends.

    Raises:
        DataError: The folder can't be written, or the system has no POSIX file locks.
    """
    try:
        import fcntl
    except ImportError:
        raise file_error(folder, "this system has no POSIX file locks", "a POSIX system") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        problem = f"can't be locked ({error.strerror or error})"
        raise file_error(folder, problem, "a folder that can be written") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        yield
    finally:
        os.close(lock)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that an old file can't reappear after a power cut."""
    if os.name != "posix":  # other systems offer no way to do it
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
