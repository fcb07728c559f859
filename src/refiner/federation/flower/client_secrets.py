"""A client's own folder: its settings, its secrets, and what its defence remembers. None of it leaves.

The folder is named in the SuperNode's own configuration, `--node-config 'folder="/private/client"'`. Flower
starts a new process for every message, so that what must last lies there and not in memory.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from refiner.errors import DataError, SettingError
from refiner.federation.secure.identity import Identity

_OTHERS = 0o077


def folder_of(context: Context) -> Path:
    """The client's own folder, as its SuperNode's configuration names it.

    >>> from flwr.app import RecordDict
    >>> folder_of(Context(1, 2, {}, RecordDict(), {}))
    Traceback (most recent call last):
    refiner.errors.SettingError: folder: not in this node's configuration; start it with ...
    """
    named = context.node_config.get("folder")
    if not isinstance(named, str) or not named:
        raise SettingError(
            "folder: not in this node's configuration; start it with "
            "--node-config 'folder=\"/private/client\"'"
        )
    folder = Path(named)
    if not folder.is_dir():
        raise DataError(f"folder = {named!r}: no such folder on this client")
    return folder


def secret(context: Context) -> bytes:
    """The 32 secret bytes of this client, made once and kept in its folder: for `Refiner(secret=…)`.

    An image's noise depends on them. With new ones in every process a server could average the noise away.
    """
    return secret_in(folder_of(context))


def secret_in(folder: Path) -> bytes:
    """The 32 secret bytes that `folder` keeps; nobody else may read the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     secret_in(Path(folder)) == secret_in(Path(folder))
    True
    """
    path = folder / "secret"
    if not path.exists():
        write_private(path, secrets.token_bytes(32))
    return _own_bytes(path)


def identity_in(folder: Path, *, new: bool = False) -> Identity:
    """The key by which the other clients know this one, kept in its folder; made only where `new` says so.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     identity_in(Path(folder), new=True).public == identity_in(Path(folder)).public
    True
    """
    path = folder / "identity"
    if not path.exists():
        # A key that nobody else has on a list is of no use: who starts without one is told.
        if not new:
            raise DataError(f"identity: {path} is missing; make it with `refiner identity {folder}`")
        write_private(path, Identity.generate().secret())
    return Identity(_own_bytes(path))


def others_may(path: Path, how: int) -> bool:
    """Whether others than a file's owner have one of these permissions, such as 0o022, to write it."""
    return os.name == "posix" and bool(path.stat().st_mode & how)


def _own_bytes(path: Path) -> bytes:
    """The 32 bytes of a file that nobody else may read."""
    try:
        held = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path.name}: {path} can't be read ({error.strerror})") from error
    if len(held) != 32:
        raise DataError(f"{path.name}: {path} holds {len(held)} bytes, expected 32")
    if others_may(path, _OTHERS):
        raise DataError(f"{path.name}: others may read {path}; use chmod 600, or delete it for a new one")
    return held


def remembered(folder: Path) -> dict[str, Tensor]:
    """What a defence remembered when it last uploaded; nothing if it never did."""
    path = folder / "memory.safetensors"
    if not path.exists():
        return {}
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(f"memory: {path} is unreadable; delete it to start anew") from error


def remember(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Keep what a defence remembers, if it does."""
    if state:
        held = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        write_private(folder / "memory.safetensors", save(held))


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that only its owner may read; it is on the disk when this returns."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DataError(f"{path}: can't be written ({error.strerror})") from error


def _sync(folder: Path) -> None:
    """Have the disk know of a file's new name, too: after a power cut the old one must not be back."""
    if os.name != "posix":  # others give no way to it
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
