"""A training's checkpoint: one safetensors file, whole or not there, refused if a bit of it is wrong."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner.errors import DataError
from refiner.files import write_whole


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stands after `rounds` rounds."""

    rounds: int
    parameters: Tensor
    """`[N]`"""
    server: Mapping[str, Tensor]
    defense: Mapping[str, Tensor]

    def write(self, path: Path, settings: Mapping[str, object]) -> None:
        """Write it; a training that goes on from it must have the same `settings`."""
        tensors = {"parameters": self.parameters}
        tensors |= {f"server.{name}": value for name, value in self.server.items()}
        tensors |= {f"defense.{name}": value for name, value in self.defense.items()}
        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        about = {"settings": json.dumps(settings, sort_keys=True), "rounds": str(self.rounds)}
        write_whole(path, save(held, about | {"sum": _sum(held, about)}))

    @classmethod
    def read(cls, path: Path, settings: Mapping[str, object]) -> "Checkpoint":
        """What `write` wrote, if it is whole and of the same `settings`."""
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.pop("sum") != _sum(tensors, about):
                raise ValueError("its checksum is wrong")
            found, rounds = dict(json.loads(about["settings"])), int(about["rounds"])
            parameters = tensors["parameters"]
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise DataError(
                f"checkpoint = {str(path)!r}: unreadable ({reason}); remove it to begin anew"
            ) from error
        wanted = json.loads(json.dumps(settings))
        for name in sorted({*wanted, *found}):
            if wanted.get(name) != found.get(name):
                raise DataError(
                    f"checkpoint = {str(path)!r}: made with {name} = {found.get(name)!r}, not "
                    f"{wanted.get(name)!r}; use another folder"
                )
        return cls(rounds, parameters, _under("server.", tensors), _under("defense.", tensors))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _sum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    total = zlib.crc32(json.dumps([sorted(tensors), sorted(about.items())]).encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].contiguous().numpy().tobytes(), total)
    return f"{total:08x}"
