"""What crosses the border, and the checks on both of its sides: nobody believes the other."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from torch import Tensor

from refiner import checks
from refiner.errors import DataError
from refiner.federation.secure.primitives import digest

Shapes = Mapping[str, torch.Size]

# The names of Flower's own examples and strategies.
_ARRAYS, _CONFIG, _METRICS, _COUNT = "arrays", "config", "metrics", "num-examples"
# What a header of numpy's format may add to the numbers.
_HEADER = 4096


@dataclass(frozen=True)
class Order:
    """What a server asks of a client in a round; it has no say in the client's data, defence or noise.

    >>> Order(round=1, model="lenet", classes=10, batch=0, local_steps=1, lr=0.1)
    Traceback (most recent call last):
    refiner.errors.SettingError: batch = 0: expected an integer ≥ 1
    """

    round: int
    model: str
    classes: int
    batch: int
    local_steps: int
    lr: float

    def __post_init__(self) -> None:
        for name in ("round", "classes", "batch", "local_steps"):
            checks.integer(name, getattr(self, name), 1)
        checks.number("lr", self.lr, 0, above=True)
        if not isinstance(self.model, str):
            raise checks.wrong("model", self.model, "text")

    def content(self, values: Tensor, shapes: Shapes) -> RecordDict:
        """The order as a message holds it, with the model's parameters `[N]`."""
        return self.around(to_arrays(values, shapes))

    def around(self, arrays: ArrayRecord) -> RecordDict:
        """The same, with parameters that are arrays already."""
        return RecordDict({_CONFIG: ConfigRecord(asdict(self)), _ARRAYS: arrays})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """The order in a message."""
        held = content.get(_CONFIG)
        known = {field.name for field in fields(cls)}
        if not isinstance(held, ConfigRecord) or set(held) != known:
            raise DataError(f"order: expected {', '.join(sorted(known))} and nothing else")
        return cls(**dict(held))  # type: ignore[arg-type]


def order_digest(content: RecordDict) -> bytes:
    """SHA-256 of the order in a message: of all that a client's move takes from it, settings and arrays.

    >>> order, shapes = Order(1, "lenet", 10, batch=8, local_steps=1, lr=0.1), {"w": torch.Size([2])}
    >>> told = order_digest(order.content(torch.tensor([0.0, 1.0]), shapes))
    >>> told == order_digest(order.content(torch.tensor([1.0, 0.0]), shapes))
    False
    """
    parts: list[str | bytes] = ["order"]
    for name, value in asdict(Order.read(content)).items():
        parts += [name, json.dumps(value)]
    arrays = _arrays(content)
    # As they came, before they are unpacked; and by name, as a client reads them.
    for name in sorted(arrays):
        array = arrays[name]
        parts += [name, array.dtype, json.dumps(array.shape), array.stype, array.data]
    return digest(*parts)


def answer(move: Tensor, shapes: Shapes, samples: int) -> RecordDict:
    """A client's protected move `[N]`, and of how many samples it is."""
    return RecordDict({_ARRAYS: to_arrays(move, shapes), _METRICS: MetricRecord({_COUNT: samples})})


def read_answer(content: RecordDict, shapes: Shapes, like: Tensor, most: int) -> tuple[Tensor, int]:
    """The move `[N]` of a client and its samples, at most `most`; or an error that names what is wrong."""
    metrics = content.get(_METRICS)
    count = metrics.get(_COUNT) if isinstance(metrics, MetricRecord) else None
    samples = checks.integer(_COUNT, count, 1, most)
    return from_arrays(content, shapes, like), samples


def refusal(error: Error) -> str:
    """Why a node sent nothing, in a line of ours.

    >>> refusal(Error(code=100, reason="no\\ndata"))
    'error 100: no data'
    """
    return f"error {error.code}: {' '.join(str(error.reason).split())[:200]}"


def to_arrays(values: Tensor, shapes: Shapes) -> ArrayRecord:
    """Parameters or a move `[N]` by name.

    >>> record = to_arrays(torch.arange(3.0), {"weight": torch.Size([2, 1]), "bias": torch.Size([1])})
    >>> record["weight"].numpy().tolist()
    [[0.0], [1.0]]
    """
    parts = torch.split(values.detach().cpu(), [shape.numel() for shape in shapes.values()])
    named = zip(shapes.items(), parts, strict=True)
    return ArrayRecord({name: Array(part.view(shape).numpy()) for (name, shape), part in named})


def from_arrays(content: RecordDict, shapes: Shapes, like: Tensor) -> Tensor:
    """The arrays of a message as one tensor `[N]` of the kind of `like`; each is checked by its name.

    >>> content = RecordDict({"arrays": to_arrays(torch.tensor([1.0, float("nan")]), {"w": torch.Size([2])})})
    >>> from_arrays(content, {"w": torch.Size([2])}, torch.zeros(1))
    Traceback (most recent call last):
    refiner.errors.DataError: w: holds NaN or infinity
    """
    record = _arrays(content)
    for name in shapes:
        if name not in record:
            raise DataError(f"{name}: missing")
    if len(record) > len(shapes):
        raise DataError(f"{_short(next(name for name in record if name not in shapes))}: not a parameter")
    parts = [_tensor(name, record[name], shape, like) for name, shape in shapes.items()]
    return torch.cat([part.flatten() for part in parts]).to(like.device)


def _arrays(content: RecordDict) -> ArrayRecord:
    record = content.get(_ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise DataError("arrays: missing")
    return record


def _tensor(name: str, array: Array, shape: torch.Size, like: Tensor) -> Tensor:
    dtype = str(like.dtype).removeprefix("torch.")
    # Before it is unpacked: what it says of itself, and how long it is.
    if array.dtype != dtype or len(array.data) > shape.numel() * like.element_size() + _HEADER:
        raise DataError(
            f"{name}: {_short(array.dtype)} of {len(array.data)} bytes, expected {dtype} {[*shape]}"
        )
    try:
        found = array.numpy()
    except Exception as error:  # whatever a stranger put there
        raise DataError(f"{name}: unreadable") from error
    if found.shape != tuple(shape) or str(found.dtype) != dtype:
        raise DataError(f"{name}: {found.dtype} {list(found.shape)}, expected {dtype} {[*shape]}")
    if not np.isfinite(found).all():
        raise DataError(f"{name}: holds NaN or infinity")
    return torch.from_numpy(found.copy())


def _short(text: str) -> str:
    """A stranger's text, in a line of ours."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
