"""Atomic writing of files: a killed run never leaves half of one."""

import os
import secrets
from pathlib import Path

from refiner.errors import DataError


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
        raise DataError(
            f"{target}: can't be written ({error.strerror or error})",
            field="path",
            value=str(target),
            expected="a path that can be written",
        ) from error
    finally:
        # A failed clean-up must not hide the first error.
        if part.exists():
            part.unlink()
    return target
