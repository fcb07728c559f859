"""The messages of a round and their validation: neither client nor server trusts what the other sends."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from torch import Tensor

from refiner import checks
from refiner.core.task import Task
from refiner.errors import DataError, RefinerError
from refiner.federation.flower.received_array import quote, read_array, wrong_array
from refiner.federation.secure.primitives import digest

Shapes = Mapping[str, torch.Size]
"""The shapes of a model's parameters by name."""

# The record names of Flower's own examples and strategies.
_ARRAYS, _CONFIG, _METRICS, _NUM_EXAMPLES = "arrays", "config", "metrics", "num-examples"

_MODEL_CHARACTERS = 1000


class RefusedRequest(RefinerError):
    """A client does not answer a request. Only the request and its settings decide: the text may be sent."""


@dataclass(frozen=True)
class TrainInstructions:
    """The training instructions that a server sends to a client with the model's parameters.

    They set neither the client's data nor its defence or noise. By round, batch and local steps they do
    choose a position in the client's secret order of its samples; that is why a client accepts one batch, one
    number of local steps and one model in a run.

    Args:
        round: Number of the round, from 1.
        model: Name of the model, which the client builds itself.
        classes: Number of classes of the model.
        batch: Samples in a local step.
        local_steps: Number of local steps.
        lr: Learning rate of a local step.

    Raises:
        SettingError: If a value has the wrong type or lies outside its range.

    >>> TrainInstructions(round=1, model="lenet", classes=10, batch=0, local_steps=1, lr=0.1)
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
            raise checks.wrong("model", self.model, "a string")
        if len(self.model) > _MODEL_CHARACTERS:  # a client keeps it on its disk
            raise checks.wrong("model", f"{self.model[:57]}...", f"{_MODEL_CHARACTERS} characters or fewer")

    def content(self, parameters: Tensor, shapes: Shapes) -> RecordDict:
        """The content of a message with these instructions and the model's parameters `[N]`."""
        return self.content_with(to_arrays(parameters, shapes))

    def content_with(self, arrays: ArrayRecord) -> RecordDict:
        """The content of a message with these instructions and parameters that are arrays already."""
        return RecordDict({_CONFIG: ConfigRecord(asdict(self)), _ARRAYS: arrays})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """The instructions in a message; missing or additional fields raise."""
        record = content.get(_CONFIG)
        names = {field.name for field in fields(cls)}
        if not isinstance(record, ConfigRecord) or set(record) != names:
            expected = f"{', '.join(sorted(names))} and nothing else"
            raise DataError(
                f"instructions: expected {expected}",
                field="instructions",
                value=sorted(record) if isinstance(record, ConfigRecord) else None,
                expected=expected,
            )
        return cls(**dict(record))  # type: ignore[arg-type]


def instructions_digest(content: RecordDict) -> bytes:
    """SHA-256 of everything in a message that a client's update depends on: instructions and parameters.

    >>> instructions = TrainInstructions(1, "lenet", 10, batch=8, local_steps=1, lr=0.1)
    >>> shapes = {"w": torch.Size([2])}
    >>> first = instructions_digest(instructions.content(torch.tensor([0.0, 1.0]), shapes))
    >>> first == instructions_digest(instructions.content(torch.tensor([1.0, 0.0]), shapes))
    False
    """
    parts: list[str | bytes] = ["order"]
    for name, value in asdict(TrainInstructions.read(content)).items():
        parts += [name, json.dumps(value)]
    arrays = _array_record(content)
    # The serialized arrays, sorted by name, as a client reads them by name.
    for name in sorted(arrays):
        array = arrays[name]
        parts += [name, array.dtype, json.dumps(array.shape), array.stype, array.data]
    return digest(*parts)


def received_instructions(content: RecordDict) -> TrainInstructions:
    """The instructions that a client received; wrong ones are refused."""
    try:
        return TrainInstructions.read(content)
    except RefinerError as error:
        raise RefusedRequest(str(error)) from error


def received_parameters(content: RecordDict, task: Task) -> Tensor:
    """The parameters `[N]` that a client received for its model; wrong ones are refused."""
    try:
        return from_arrays(content, task.shapes, next(iter(task.parameters().values())))
    except RefinerError as error:
        raise RefusedRequest(str(error)) from error


def update_content(update: Tensor, shapes: Shapes, samples: int) -> RecordDict:
    """The content of a client's reply: its protected model update `[N]` and its number of samples."""
    return RecordDict({_ARRAYS: to_arrays(update, shapes), _METRICS: MetricRecord({_NUM_EXAMPLES: samples})})


def read_update(content: RecordDict, shapes: Shapes, like: Tensor, max_samples: int) -> tuple[Tensor, int]:
    """The model update `[N]` and the number of samples in a client's reply, after validation.

    Args:
        content: The content of the reply.
        shapes: The shapes of the model's parameters.
        like: A tensor with the dtype and the device of the model.
        max_samples: The largest number of samples that a client may claim.

    Raises:
        RefinerError: Names the first record or parameter that is wrong.
    """
    metrics = content.get(_METRICS)
    count = metrics.get(_NUM_EXAMPLES) if isinstance(metrics, MetricRecord) else None
    samples = checks.integer(_NUM_EXAMPLES, count, 1, max_samples)
    return from_arrays(content, shapes, like), samples


def error_text(error: Error) -> str:
    """A node's error reply on one line of limited length, without characters that control a terminal.

    >>> error_text(Error(code=100, reason="no\\ndata\\x1b[2J"))
    'error 100: no data?[2J'
    """
    reason = " ".join(str(error.reason).split())[:200]
    printable = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return f"error {error.code}: {printable}"


def to_arrays(flat: Tensor, shapes: Shapes) -> ArrayRecord:
    """Parameters or a model update `[N]` as arrays by parameter name.

    >>> record = to_arrays(torch.arange(3.0), {"weight": torch.Size([2, 1]), "bias": torch.Size([1])})
    >>> record["weight"].numpy().tolist()
    [[0.0], [1.0]]
    """
    pieces = torch.split(flat.detach().cpu(), [shape.numel() for shape in shapes.values()])
    named = zip(shapes.items(), pieces, strict=True)
    return ArrayRecord({name: Array(piece.view(shape).numpy()) for (name, shape), piece in named})


def from_arrays(content: RecordDict, shapes: Shapes, like: Tensor) -> Tensor:
    """The arrays of a message as one tensor `[N]` with the dtype and device of `like`, after validation.

    >>> content = RecordDict({"arrays": to_arrays(torch.tensor([1.0, float("nan")]), {"w": torch.Size([2])})})
    >>> from_arrays(content, {"w": torch.Size([2])}, torch.zeros(1))
    Traceback (most recent call last):
    refiner.errors.DataError: w: contains NaN or infinity
    """
    record = _array_record(content)
    for name in shapes:
        if name not in record:
            raise DataError(f"{name}: missing", field=name, value=None, expected="an array of this name")
    if len(record) > len(shapes):
        unknown = quote(next(name for name in record if name not in shapes))
        raise DataError(
            f"{unknown}: not a parameter",
            field=unknown,
            value=unknown,
            expected="only the model's parameters",
        )
    tensors = [_to_tensor(name, record[name], shape, like) for name, shape in shapes.items()]
    return torch.cat([tensor.flatten() for tensor in tensors]).to(like.device)


def _array_record(content: RecordDict) -> ArrayRecord:
    record = content.get(_ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise DataError(
            "arrays: missing", field="arrays", value=type(record).__name__, expected="an ArrayRecord"
        )
    return record


def _to_tensor(name: str, array: Array, shape: torch.Size, like: Tensor) -> Tensor:
    dtype = str(like.dtype).removeprefix("torch.")
    expected = f"{dtype} {[*shape]}"
    values = read_array(name, array, dtype, shape.numel(), expected)
    if values.shape != tuple(shape):
        raise wrong_array(name, f"{values.dtype} {list(values.shape)}", expected)
    if not np.isfinite(values).all():
        raise DataError(
            f"{name}: contains NaN or infinity", field=name, value=values, expected="finite numbers"
        )
    return torch.from_numpy(values.copy())
