"""A client's secret: 32 random bytes in a file that only its owner can read."""

import os
import secrets
from pathlib import Path

from refiner.errors import DataError
from refiner.files import create_private

# Permissions of group and others to read, write or execute.
_OTHERS = 0o077


def load_secret(path: str | os.PathLike[str]) -> bytes:
    """The secret of this client, for `Refiner(secret=...)`: created at the first call, then always the same.

    The noise of an image depends on it: with a new secret in every process, a server could average the noise
    away. Keep the file as long as you train, use it for one client only, and send it to nobody.

    Args:
        path: The file. If it is missing, it is created with 32 random bytes and mode 600.

    Returns:
        The 32 bytes.

    Raises:
        DataError: The file can't be created or read, has not 32 bytes, or others can read it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "client.secret"
    ...     len(load_secret(file)), load_secret(file) == load_secret(file), oct(file.stat().st_mode)
    (32, True, '0o100600')
    """
    file = Path(path)
    if not file.exists():
        create_private(file, secrets.token_bytes(32))
    return read_private_bytes(file)


def read_private_bytes(path: Path) -> bytes:
    """The 32 bytes of a file that only its owner can read.

    Raises:
        DataError: The file is not such a file.
    """
    expected = "a file of 32 bytes that only its owner can read"
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = f"{path} can't be read ({error.strerror})"
        raise DataError(
            f"{path.name}: {reason}", field=path.name, value=str(path), expected=expected
        ) from error
    if len(content) != 32:
        reason = f"{path} has {len(content)} bytes, expected 32"
        raise DataError(f"{path.name}: {reason}", field=path.name, value=str(path), expected=expected)
    if others_have_permission(path, _OTHERS):
        reason = f"others can read {path}; use chmod 600, or delete it to create a new one"
        raise DataError(f"{path.name}: {reason}", field=path.name, value=str(path), expected=expected)
    return content


def others_have_permission(path: Path, mode: int) -> bool:
    """Whether others than a file's owner have one of the permissions in `mode`, such as 0o022 to write."""
    return os.name == "posix" and bool(path.stat().st_mode & mode)
