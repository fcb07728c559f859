"""Checkpoints of trainings: one safetensors file with a checksum, written atomically."""

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner.errors import DataError
from refiner.files import write_atomically


def write_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object], done: int
) -> None:
    """Write the state of a training.

    Args:
        path: Where to; an existing file is replaced in one step.
        tensors: The state by name.
        settings: The settings of the training, as JSON takes them; to resume it they must be the same.
        done: How many steps are done.

    Raises:
        DataError: The file can't be written.
    """
    state = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = {"settings": json.dumps(settings), "done": str(done)}
    write_atomically(path, save(state, metadata | {"sum": tensors_digest(state, metadata)}), private=True)


def read_checkpoint(
    path: Path, settings: Mapping[str, object], restore: Callable[[Mapping[str, Tensor]], None]
) -> int:
    """Read the state of a training and pass it to `restore`.

    Args:
        path: The file that `write_checkpoint` wrote.
        settings: The settings of the training that resumes.
        restore: Called with the tensors by name, if the file is intact and its settings are the same.

    Returns:
        How many steps are done.

    Raises:
        DataError: The file is missing or damaged, or from a training with other settings.

    >>> read_checkpoint(Path("absent"), {}, lambda tensors: None)
    Traceback (most recent call last):
    refiner.errors.DataError: checkpoint = 'absent': unreadable (No such file or ...); delete it to start anew
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if metadata.pop("sum", "") != tensors_digest(tensors, metadata):
            raise ValueError("its checksum is wrong")
        saved, done = dict(json.loads(metadata["settings"])), int(metadata["done"])
        expected = json.loads(json.dumps(settings))
        different = [key for key in {**expected, **saved} if saved.get(key) != expected.get(key)]
        if not different:
            restore(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise _checkpoint_error(path, f"unreadable ({' '.join(str(error).split())[:120]})") from error
    if different:
        raise _checkpoint_error(path, f"made with another {', '.join(different)}")
    return done


def _checkpoint_error(path: Path, problem: str) -> DataError:
    return DataError(
        f"checkpoint = {str(path)!r}: {problem}; delete it to start anew",
        field="checkpoint",
        value=str(path),
        expected="a checkpoint of the same training",
    )


def tensors_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256, in hex, of tensors with their names, dtypes and shapes, and of metadata; order does not count.

    >>> tensors_digest({"a": torch.zeros(2)}, {}) == tensors_digest({"a": torch.zeros(2).int()}, {})
    False
    """
    names = sorted(tensors)
    header = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    total = hashlib.sha256(json.dumps([header, sorted(metadata.items())]).encode())
    for name in names:
        total.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def tensors_checksum(*tensors: Tensor) -> int:
    """CRC-32 of the bytes of all tensors, one after another.

    >>> whole, halves = torch.zeros(4), (torch.zeros(2), torch.zeros(2))
    >>> tensors_checksum(whole) == tensors_checksum(*halves) != tensors_checksum(torch.ones(4))
    True
    """
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), total)
    return total


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix` and a dot, under the rest of their names.

    >>> select_prefix("server", {"server.momentum": 1, "parameters": 2})
    {'momentum': 1}
    """
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
