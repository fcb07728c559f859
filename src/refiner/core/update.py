"""Update: the protected gradients that a client may upload, made only by a defence, from finite values."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner import checks
from refiner.core.finite import make_finite_
from refiner.errors import DataError, ProtectionError
from refiner.files import write_atomically

_FORMAT = "refiner-update-1"
_PERMIT = object()
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The types that a gradient may have."""
# The errors that reading a broken file can raise; RecursionError is from deeply nested JSON.
_READ_ERRORS = (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError)


class Update:
    """The protected gradients of `V` victims, with the defence that made them; read only.

    Updates are returned by `Defense.protect` and read by `Update.load`; calling the class raises an error.

    Attributes:
        tensors: The gradients by parameter name, `[V, *shape]` each.
        samples: How many samples each victim's batch has.
        defense: The name of the defence.
        settings: The settings of the defence.
        received: Whether it was read from a file. What such an update says of its defence is a claim of
            whoever wrote it.

    Raises:
        ProtectionError: The class was called directly, or the values are not finite.

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
        received: bool = False,
        _permit: object = None,
    ) -> None:
        if _permit is not _PERMIT:
            raise ProtectionError("an Update is made by a defence: call its protect(task, x, y)")
        self._flat = _joint_matrix([*tensors.values()])
        # Columns of one matrix all have its dtype and its number of victims.
        problem = _find_problem(tensors if self._flat is None else {next(iter(tensors)): self._flat})
        if problem is not None:
            raise ProtectionError(f"{defense} made {problem}; no update was made")
        values = [t for t in tensors.values() if t.numel()] if self._flat is None else [self._flat]
        finite = torch.stack(torch._foreach_norm(values, math.inf)).isfinite().all()
        if samples < 1:
            raise DataError(field="samples", value=samples, expected="an integer ≥ 1")
        self.tensors: Mapping[str, Tensor] = MappingProxyType({n: t.detach() for n, t in tensors.items()})
        self.samples = samples
        self.defense = defense
        self.received = received
        self.settings: Mapping[str, object] = MappingProxyType(dict(settings))
        # One check of all values, and last: it waits for the GPU.
        if not bool(finite):
            raise ProtectionError(f"{defense} made values that are not finite; no update was made")
        self._complete = True

    def __setattr__(self, name: str, value: object) -> None:
        if "_complete" in self.__dict__:
            raise AttributeError(f"{name}: an Update is read only")
        super().__setattr__(name, value)

    @property
    def victims(self) -> int:
        """The number of independent clients in this update."""
        return len(next(iter(self.tensors.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, layer by layer."""
        return tuple(self.tensors)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Each parameter's shape, without the victim axis."""
        return {name: t.shape[1:] for name, t in self.tensors.items()}

    def flat(self) -> Tensor:
        """All values as one matrix.

        Returns:
            `[V, N]`, for reading only: it may share its memory with `tensors`.
        """
        if self._flat is not None:
            return self._flat
        return torch.cat([t[:, None].flatten(1) for t in self.tensors.values()], dim=1)

    def __repr__(self) -> str:
        size = f"victims={self.victims}, samples={self.samples}, parameters={len(self.tensors)}"
        origin = "received, claims " if self.received else ""
        return f"Update({origin}{self.defense}, {size})"

    def victim(self, index: int) -> dict[str, Tensor]:
        """The gradients of one victim by parameter name, as copies.

        To store or send them: `tensors[name][index]` is a view, with which `torch.save` writes all victims.

        Args:
            index: The victim's index.

        Returns:
            Tensors of the parameters' shapes.

        Raises:
            SettingError: There is no such victim.
        """
        checks.integer("index", index, 0, self.victims - 1)
        return {name: t[index].clone() for name, t in self.tensors.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the update as one safetensors file.

        Args:
            path: Where to; folders are made, and an existing file is replaced in one step.

        Raises:
            DataError: The file can't be written.
        """
        metadata = {
            "format": _FORMAT,
            "samples": str(self.samples),
            "defense": self.defense,
            "settings": json.dumps(dict(self.settings)),
            "names": json.dumps(self.names),
        }
        write_atomically(
            path, save({name: t.cpu().contiguous() for name, t in self.tensors.items()}, metadata)
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Update":
        """Read an update that `save` wrote, as a server does.

        Args:
            path: The safetensors file.

        Returns:
            The update, on the CPU, with `received` set: its file may claim any defence.

        Raises:
            DataError: The file is missing, damaged, or not an update of finite values.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise _load_error(path, "not written by Update.save")
                names = json.loads(metadata["names"])
                if not isinstance(names, list) or sorted(names) != sorted(file.keys()):
                    raise ValueError("its tensors are not those that its names list")
                tensors = {name: file.get_tensor(name) for name in names}
                # JSON has no tuples: every list is read as one.
                settings = {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in json.loads(metadata["settings"]).items()
                }
                samples, defense = int(metadata["samples"]), metadata["defense"]
            if (problem := _find_problem(tensors)) is not None:
                raise ValueError(f"it holds {problem}")
            if samples < 1:
                raise ValueError(f"samples = {samples}: expected an integer ≥ 1")
        except _READ_ERRORS as error:
            if isinstance(error, DataError):
                raise
            raise _load_error(path, f"unreadable ({' '.join(str(error).split())[:120]})") from error
        try:
            claims = {"samples": samples, "defense": defense, "settings": settings}
            return cls(tensors, **claims, received=True, _permit=_PERMIT)
        except ProtectionError as error:
            raise _load_error(path, "holds values that are not finite") from error


def _load_error(path: str | os.PathLike[str], problem: str) -> DataError:
    return DataError(
        field="update",
        value=str(path),
        problem=problem,
        expected="a file written by Update.save",
    )


def _find_problem(tensors: Mapping[str, Tensor]) -> str | None:
    """Why tensors can't be gradients of victims, without a look at their values, which would wait for a GPU.

    >>> _find_problem({"a": torch.zeros(2, 3), "b": torch.zeros(3)})
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
        (count, name), (other_count, other_name), *_ = counts.items()
        return f"tensors of {count} and of {other_count} victims ({name}, {other_name})"
    return None if any(t.numel() for t in tensors.values()) else "no values"


def _joint_matrix(tensors: Sequence[Tensor]) -> Tensor | None:
    """The matrix `[V, N]` of which the tensors `[V, *shape]` are consecutive columns, if there is one.

    >>> matrix = torch.arange(6.0).view(2, 3)
    >>> _joint_matrix([matrix[:, :1], matrix[:, 1:]])
    tensor([[0., 1., 2.],
            [3., 4., 5.]])
    >>> _joint_matrix([matrix[:, :1], matrix[:, 2:]])
    """
    if not tensors or not tensors[0].numel() or not all(t.ndim for t in tensors):
        return None
    first = tensors[0]
    victims, item_size, address = len(first), first.element_size(), first.data_ptr()
    storage = _storage_range(first)
    size = sum(t.numel() for t in tensors) // victims
    for t in tensors:
        count = t.numel() // victims
        contiguous_strides, stride = [], count
        for side in t.shape[1:]:
            stride //= max(1, side)
            contiguous_strides.append(stride)
        layout = (t.data_ptr(), _storage_range(t), t.dtype, len(t), t.stride()[1:])
        if layout != (address, storage, first.dtype, victims, tuple(contiguous_strides)):
            return None
        if victims > 1 and t.stride(0) != size:
            return None
        address += item_size * count
    return first.detach().as_strided((victims, size), (size, 1))


def _storage_range(t: Tensor) -> tuple[int, int]:
    """The address and the length in bytes of the storage that a tensor is a view of."""
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def make_update(
    tensors: Mapping[str, Tensor],
    *,
    samples: int,
    defense: str,
    settings: Mapping[str, object],
    replace_non_finite: bool = False,
) -> Update:
    """Make an Update; only the base class of the defences may call it.

    Args:
        tensors: Protected gradients by parameter name, `[V, *shape]` each. They may be changed in place.
        samples: How many samples each victim's batch has.
        defense: The name of the defence.
        settings: The settings of the defence.
        replace_non_finite: Replace NaN by 0, and infinity by a large number, instead of raising an error.

    Returns:
        The update. Its zeros have no sign: it would be that of the value that a defence removed.

    Raises:
        ProtectionError: The tensors are not finite gradients of the same victims.
    """
    matrix = _joint_matrix([*tensors.values()])
    if matrix is None:
        tensors = {name: t.detach().clone() for name, t in tensors.items()}
    # The tensors themselves, or the matrix that they are columns of.
    for t in tensors.values() if matrix is None else (matrix,):
        if t.dtype in FLOATS:
            t.add_(0.0)  # −0 + 0 = +0
            if replace_non_finite:
                make_finite_(t)
    return Update(tensors, samples=samples, defense=defense, settings=settings, _permit=_PERMIT)
