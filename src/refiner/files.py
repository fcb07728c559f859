"""Files that are either whole or not there: a killed run never leaves half of one."""

import os
import secrets
from pathlib import Path

from refiner.errors import DataError


def write_whole(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write `content` to a temporary file beside `path`, then put it in place in one step.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "new" / "a.txt", b"whole").read_bytes()
    b'whole'
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target}: can't be written ({error.strerror or error})") from error
    finally:
        # A failed clean-up must not hide what went wrong.
        if part.exists():
            part.unlink()
    return target
