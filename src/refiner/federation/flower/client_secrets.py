"""A client's private folder: its settings, its secrets and its defence's state. None of it is ever sent.

The folder is named in the SuperNode's configuration, `--node-config 'folder="/private/client"'`. Flower
starts a new process for every message, so state that must persist is stored there.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from refiner.defenses import Defense, DefenseState
from refiner.errors import DataError, SettingError
from refiner.federation.secure.identity import Identity
from refiner.files import create_private, file_error, write_atomically
from refiner.secret_file import load_secret, others_have_permission, read_private_bytes


class NoFolder(SettingError):
    """The node's configuration names no folder. It says nothing of the client's data, and may be sent."""


def client_folder(context: Context) -> Path:
    """The client's private folder, as named in its SuperNode's configuration.

    >>> from flwr.app import RecordDict
    >>> client_folder(Context(1, 2, {}, RecordDict(), {}))
    Traceback (most recent call last):
    refiner.federation.flower.client_secrets.NoFolder: folder: not in this node's configuration, so ...
    """
    name = context.node_config.get("folder")
    if not isinstance(name, str) or not name:
        raise NoFolder(
            "folder: not in this node's configuration, so there is no place for its secret; start the "
            "SuperNode with --node-config 'folder=\"/private/client\"'",
            field="folder",
            value=name,
            expected="a folder on this client",
        )
    folder = Path(name)
    if not folder.is_dir():
        raise DataError(
            f"folder = {name!r}: no such folder on this client; create it with mkdir -m 700",
            field="folder",
            value=name,
            expected="a folder on this client",
        )
    return folder


def secret(context: Context) -> bytes:
    """The 32 secret bytes of this client, for `Refiner(secret=...)`.

    They are created at the first call and kept in the client's private folder. The noise of an image depends
    on them: with a new secret in every process, a server could average the noise away.

    Args:
        context: The context that Flower passes to the client's functions.

    Returns:
        32 random bytes, the same at every call.

    Raises:
        SettingError: If the node's configuration names no folder.
        DataError: If the folder is missing, or the secret is damaged or readable by others.

    >>> import tempfile
    >>> from flwr.app import RecordDict
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     context = Context(1, 2, {"folder": folder}, RecordDict(), {})
    ...     len(secret(context)), secret(context) == secret(context)
    (32, True)
    """
    return load_secret(client_folder(context) / "secret")


@contextmanager
def defense_state(context: Context, defense: Defense) -> Iterator[DefenseState]:
    """What a defence remembers, for `refiner.backward(..., state=...)`: kept in the client's private folder.

    It is read at the start of the block and saved at its end; an exception in between leaves it as it was.

    Args:
        context: The context that Flower passes to the client's functions.
        defense: The defence.

    Yields:
        The state.

    Raises:
        SettingError: If the node's configuration names no folder.
        DataError: If the folder is missing, or the stored state is damaged.

    >>> import tempfile
    >>> from flwr.app import RecordDict
    >>> from refiner import Refiner
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     context = Context(1, 2, {"folder": folder}, RecordDict(), {})
    ...     with defense_state(context, Refiner()) as state:
    ...         type(state).__name__
    'RefinerState'
    """
    folder, state = client_folder(context), defense.init_state()
    state.load_state_dict(load_defense_state(folder))
    yield state
    save_defense_state(folder, state.state_dict())


def load_identity(folder: Path, *, create: bool = False) -> Identity:
    """The key pair by which other clients recognise this one; created only with `create`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_identity(Path(folder), create=True).public == load_identity(Path(folder)).public
    True
    """
    path = folder / "identity"
    if not path.exists():
        # A new key would be useless until every other client has it in its list, so it is not made silently.
        if not create:
            raise DataError(
                f"identity: {path} is missing; create it with `refiner identity {folder}`",
                field="identity",
                value=str(path),
                expected="a file with the client's key",
            )
        create_private(path, Identity.generate().secret())
    return Identity(read_private_bytes(path))


def check_ownership(path: Path) -> None:
    """Raise if a file belongs to another user, or others can write it: they could change data and defence.

    Raises:
        DataError: Says what to do. A missing file is no error.
    """
    if os.name != "posix" or not path.exists():
        return
    if path.stat().st_uid not in (os.geteuid(), 0):
        raise file_error(path, "belongs to another user; use chown", "a file of this user")
    if others_have_permission(path, 0o022):
        raise file_error(path, "others can write it; use chmod 600", "a file that only its owner can write")


def load_defense_state(folder: Path) -> dict[str, Tensor]:
    """The state of the defence after its last upload; empty if there is none."""
    path = folder / "memory.safetensors"
    if not path.exists():
        return {}
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(
            f"memory: {path} is unreadable; delete it to start afresh",
            field="memory",
            value=str(path),
            expected="a safetensors file",
        ) from error


def save_defense_state(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Store the state of a defence, if it has one."""
    if state:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        write_atomically(folder / "memory.safetensors", save(tensors), private=True)
