"""A training's checkpoint: one safetensors file, whole or not there, refused if a bit of it is wrong."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner.errors import DataError
from refiner.files import write_whole
from refiner.generator.players import Players


def write_checkpoint(path: Path, players: Players, settings: Mapping[str, object], done: int) -> None:
    """Write where `players` stand after `done` epochs; a run that goes on must have the same `settings`."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in players.tensors().items()}
    about = {"settings": json.dumps(settings), "done": str(done)}
    write_whole(path, save(tensors, about | {"sum": _sum(tensors, about)}))


def read_checkpoint(path: Path, players: Players, settings: Mapping[str, object]) -> int:
    """Bring `players` to where the checkpoint left them and return the epochs done."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.pop("sum") != _sum(tensors, about):
            raise ValueError("its checksum is wrong")
        found, done = dict(json.loads(about["settings"])), int(about["done"])
        other = [name for name in settings if found.get(name) != settings[name]]
        if not other:
            players.restore(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(
            f"checkpoint = {str(path)!r}: unreadable ({reason}); delete it to start anew"
        ) from error
    if other:
        raise DataError(
            f"checkpoint = {str(path)!r}: made with another {', '.join(other)}; delete it to start anew"
        )
    return done


def checksum(*tensors: Tensor) -> int:
    """One number for the bytes of all tensors in turn.

    >>> import torch
    >>> checksum(torch.zeros(3)) == checksum(torch.zeros(2), torch.zeros(1)) != checksum(torch.ones(3))
    True
    """
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), total)
    return total


def _sum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    names = sorted(tensors)
    text = json.dumps([names, sorted(about.items())]).encode()
    return f"{zlib.crc32(text, checksum(*(tensors[name] for name in names))):08x}"
