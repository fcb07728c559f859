"""Errors that name a file, and atomic writing: a killed run never leaves half of a file."""

import os
import secrets
from pathlib import Path

from refiner.errors import DataError


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


def write_atomically(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write `content` to a temporary file in the same folder, then rename it to `path` in one step.

    Args:
        path: Where to; missing folders are made, and an existing file is replaced.
        content: The whole content.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "a.txt", b"whole").read_bytes()
    b'whole'
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, target)
    except OSError as error:
        problem = f"can't be written ({error.strerror or error})"
        raise file_error(target, problem, "a path that can be written") from error
    finally:
        # A failed clean-up must not hide the first error.
        if part.exists():
            part.unlink()
    return target
