"""Where a training stands: one safetensors file, whole or not there, refused if a bit of it is wrong."""

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
from refiner.files import write_whole


def write_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, object], done: int
) -> None:
    """Write where a training stands after `done` of its steps; to go on it must have the same `settings`."""
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = {"settings": json.dumps(settings), "done": str(done)}
    write_whole(path, save(held, about | {"sum": digest(held, about)}))


def read_checkpoint(
    path: Path, settings: Mapping[str, object], restore: Callable[[Mapping[str, Tensor]], None]
) -> int:
    """Give `restore` the tensors of a checkpoint with these `settings`, and return the steps done.

    >>> read_checkpoint(Path("absent"), {}, lambda tensors: None)
    Traceback (most recent call last):
    refiner.errors.DataError: checkpoint = 'absent': unreadable (No such file or ...); delete it to start anew
    """
    name = f"checkpoint = {str(path)!r}"
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if about.pop("sum", "") != digest(tensors, about):
            raise ValueError("its checksum is wrong")
        found, done = dict(json.loads(about["settings"])), int(about["done"])
        wanted = json.loads(json.dumps(settings))
        other = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
        if not other:
            restore(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{name}: unreadable ({reason}); delete it to start anew") from error
    if other:
        raise DataError(f"{name}: made with another {', '.join(other)}; delete it to start anew")
    return done


def digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """SHA-256 of tensors, by their names, types, shapes and bytes, and of what is told about them.

    >>> digest({"a": torch.zeros(2)}, {}) == digest({"a": torch.zeros(2, dtype=torch.int32)}, {})
    False
    """
    names = sorted(tensors)
    told = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    total = hashlib.sha256(json.dumps([told, sorted(about.items())]).encode())
    for name in names:
        total.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def checksum(*tensors: Tensor) -> int:
    """One number for the bytes of all tensors in turn.

    >>> checksum(torch.zeros(3)) == checksum(torch.zeros(2), torch.zeros(1)) != checksum(torch.ones(3))
    True
    """
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), total)
    return total


def under(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `part` and a dot, without that.

    >>> under("server", {"server.speed": 1, "parameters": 2})
    {'speed': 1}
    """
    start = f"{part}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
