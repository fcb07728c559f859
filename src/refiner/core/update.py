"""Update: what may leave a client. Only a defence makes one, and never from values that are not finite."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner.errors import DataError, ProtectionError
from refiner.files import write_whole

_FORMAT = "refiner-update-1"
_PERMIT = object()
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The types that a gradient may have."""
# What a file that is no update may raise as it is read; a JSON that is nested deep, the last.
_BROKEN = (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError)


class Update:
    """Protected gradients of `V` victims, name → `[V, *shape]`, with what made them; read only.

    >>> Update({}, samples=1, defense="mine", settings={})
    Traceback (most recent call last):
    refiner.errors.ProtectionError: an Update is made by a defence: call its protect(task, x, y)
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        samples: int,
        defense: str,
        settings: Mapping[str, object],
        _permit: object = None,
    ) -> None:
        if _permit is not _PERMIT:
            raise ProtectionError("an Update is made by a defence: call its protect(task, x, y)")
        self._flat = _together([*tensors.values()])
        # Parts of one matrix all have its type and its victims.
        wrong = _unfit(tensors if self._flat is None else {next(iter(tensors)): self._flat})
        if wrong is not None:
            raise ProtectionError(f"{defense} made {wrong}; nothing leaves")
        values = [t for t in tensors.values() if t.numel()] if self._flat is None else [self._flat]
        finite = torch.stack(torch._foreach_norm(values, math.inf)).isfinite().all()
        if samples < 1:
            raise DataError(f"samples = {samples}: expected an integer ≥ 1")
        held = MappingProxyType({name: t.detach() for name, t in tensors.items()})
        self.tensors: Mapping[str, Tensor] = held
        self.samples = samples
        self.defense = defense
        self.settings: Mapping[str, object] = MappingProxyType(dict(settings))
        # One look at all of them, and last: it waits for the GPU.
        if not bool(finite):
            raise ProtectionError(f"{defense} made values that are not finite; nothing leaves")
        self._made = True

    def __setattr__(self, name: str, value: object) -> None:
        if "_made" in self.__dict__:
            raise AttributeError(f"{name}: an Update is read only")
        super().__setattr__(name, value)

    @property
    def victims(self) -> int:
        """How many independent clients this update holds."""
        return len(next(iter(self.tensors.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, layer by layer."""
        return tuple(self.tensors)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Each parameter's own shape, without the victim axis."""
        return {name: t.shape[1:] for name, t in self.tensors.items()}

    def flat(self) -> Tensor:
        """All values as one matrix `[V, N]`; to be read, it may be the tensors' own memory."""
        if self._flat is not None:
            return self._flat
        return torch.cat([t[:, None].flatten(1) for t in self.tensors.values()], dim=1)

    def __repr__(self) -> str:
        size = f"victims={self.victims}, samples={self.samples}, parameters={len(self.tensors)}"
        return f"Update({self.defense}, {size})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as one safetensors file."""
        about = {
            "format": _FORMAT,
            "samples": str(self.samples),
            "defense": self.defense,
            "settings": json.dumps(dict(self.settings)),
            "names": json.dumps(self.names),
        }
        write_whole(path, save({name: t.cpu().contiguous() for name, t in self.tensors.items()}, about))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Update":
        """Read what a defence made and `save` wrote: the server's way in."""
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") != _FORMAT:
                    raise DataError(f"update = {str(path)!r}: not written by Update.save")
                names = json.loads(about["names"])
                if not isinstance(names, list) or sorted(names) != sorted(file.keys()):
                    raise ValueError("its tensors are not those that its names list")
                tensors = {name: file.get_tensor(name) for name in names}
                # JSON has no tuples: what was one comes back as one.
                settings = {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in json.loads(about["settings"]).items()
                }
                samples, defense = int(about["samples"]), about["defense"]
            if (wrong := _unfit(tensors)) is not None:
                raise ValueError(f"it holds {wrong}")
            if samples < 1:
                raise ValueError(f"samples = {samples}: expected an integer ≥ 1")
        except _BROKEN as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"update = {str(path)!r}: unreadable ({' '.join(str(error).split())[:120]})"
            ) from error
        try:
            return cls(tensors, samples=samples, defense=defense, settings=settings, _permit=_PERMIT)
        except ProtectionError as error:
            raise DataError(f"update = {str(path)!r}: holds values that are not finite") from error


def _unfit(tensors: Mapping[str, Tensor]) -> str | None:
    """What keeps tensors from being gradients of victims, values apart: no GPU is waited for.

    >>> _unfit({"a": torch.zeros(2, 3), "b": torch.zeros(3)})
    'tensors of 2 and of 3 victims (a, b)'
    """
    counts: dict[int, str] = {}
    for name, t in tensors.items():
        if t.dtype not in FLOATS:
            return f"{name} of {t.dtype}, expected floats of 16, 32 or 64 bits"
        if not t.ndim:
            return f"{name} without an axis of victims"
        counts.setdefault(t.shape[0], name)
    if len(counts) > 1:
        (one, first), (other, second), *_ = counts.items()
        return f"tensors of {one} and of {other} victims ({first}, {second})"
    return None if any(t.numel() for t in tensors.values()) else "no values"


def _together(tensors: Sequence[Tensor]) -> Tensor | None:
    """The matrix `[V, N]` whose columns, one after another, these tensors `[V, *shape]` are, if there is one.

    >>> matrix = torch.arange(6.0).view(2, 3)
    >>> _together([matrix[:, :1], matrix[:, 1:]])
    tensor([[0., 1., 2.],
            [3., 4., 5.]])
    >>> _together([matrix[:, :1], matrix[:, 2:]])
    """
    if not tensors or not tensors[0].numel() or not all(t.ndim for t in tensors):
        return None
    first = tensors[0]
    victims, width, place = len(first), first.element_size(), first.data_ptr()
    memory = _memory(first)
    size = sum(t.numel() for t in tensors) // victims
    for t in tensors:
        count = t.numel() // victims
        dense, left = [], count
        for side in t.shape[1:]:
            left //= max(1, side)
            dense.append(left)
        own = (t.data_ptr(), _memory(t), t.dtype, len(t), t.stride()[1:])
        if own != (place, memory, first.dtype, victims, tuple(dense)):
            return None
        if victims > 1 and t.stride(0) != size:
            return None
        place += width * count
    return first.detach().as_strided((victims, size), (size, 1))


def _memory(t: Tensor) -> tuple[int, int]:
    """Where the memory that a tensor shares begins, and how long it is."""
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def seal(
    tensors: Mapping[str, Tensor], *, samples: int, defense: str, settings: Mapping[str, object]
) -> Update:
    """Make an Update; for the base class of the defences, and for nobody else."""
    return Update(tensors, samples=samples, defense=defense, settings=settings, _permit=_PERMIT)
