"""A Flower mod: the weights that an existing client sends back move only as far as a defence lets them."""

import sys
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from refiner.core.noise import NoiseSource
from refiner.defenses.base import Defense, GradientTransform
from refiner.defenses.chain import Chain
from refiner.errors import DataError, ProtectionError, SettingError

Next = Callable[[Message, Context], Message]
FAILED = 101
"""The code of the error reply that stands in for weights that could not be protected."""


def defense_mod(defense: Defense) -> Callable[[Message, Context, Next], Message]:
    """A mod for `@app.train(mods=[…])` or `ClientApp(mods=[…])` that protects the move of a client's weights.

    The client is sent weights, trains, and replies with weights. Their difference goes through `defense` as a
    gradient would; for one step of SGD it is lr × gradient, so a clip or a noise of a fixed size must be
    chosen for that. A reply that can't be protected is replaced by an error without arrays.

    >>> from refiner.defenses import DPGaussian, Refiner
    >>> mod = defense_mod(DPGaussian(magnitude=1e-3))
    >>> defense_mod(Refiner())
    Traceback (most recent call last):
    refiner.errors.SettingError: defense = refiner: needs the data, which a mod doesn't see; use ...
    """
    parts = _transforms(defense)

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        sent = {key: _numbers(record) for key, record in _array_records(message).items()}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        try:
            content = _protected(reply, sent, parts)
        except Exception as error:  # whatever it is: the reply is an error, and nothing else leaves
            print(f"refiner: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            reason = f"{defense.name} failed ({type(error).__name__}); nothing leaves"
            # In answer to the request: an error in answer to the reply would never arrive.
            return Message(Error(code=FAILED, reason=reason), reply_to=message)
        return Message(content, reply_to=message)

    return mod


def _transforms(defense: Defense) -> list[GradientTransform]:
    if not isinstance(defense, Defense):
        raise SettingError(f"defense = {type(defense).__name__}: expected a Defense such as Pruning()")
    parts = defense.parts if isinstance(defense, Chain) else [defense]
    transforms = [part for part in parts if isinstance(part, GradientTransform)]
    if defense.needs != "gradient" or len(transforms) < len(parts):
        raise SettingError(
            f"defense = {defense.name}: needs the data, which a mod doesn't see; "
            "use refiner.backward in the client's training loop"
        )
    return transforms


def _protected(
    reply: Message, sent: dict[str, dict[str, NDArray[np.generic]]], parts: list[GradientTransform]
) -> RecordDict:
    """The content of a reply with every record of arrays protected."""
    content = RecordDict({key: record for key, record in reply.content.items() if key not in sent})
    for key, record in _array_records(reply).items():
        if key not in sent:
            raise DataError(f"{key}: arrays that answer none that were sent")
        content[key] = _protected_record(_numbers(record), sent[key], parts, _samples(reply))
    if not content.array_records:
        raise DataError("the reply has no arrays")
    return content


def _protected_record(
    new: dict[str, NDArray[np.generic]],
    old: dict[str, NDArray[np.generic]],
    parts: list[GradientTransform],
    samples: int,
) -> ArrayRecord:
    if set(new) != set(old):
        raise DataError(f"{sorted(set(new) ^ set(old))[0]}: sent or answered, not both")
    move: dict[str, Tensor] = {}
    for name, value in new.items():
        if value.shape != old[name].shape or value.dtype != old[name].dtype:
            raise DataError(f"{name}: {value.dtype} {list(value.shape)} in answer to another kind")
        if np.issubdtype(value.dtype, np.floating):
            move[name] = (torch.from_numpy(old[name].copy()) - torch.from_numpy(value.copy()))[None]
        elif not np.array_equal(value, old[name]):
            raise DataError(f"{name}: {value.dtype} that changed; a defence is for floating-point numbers")
    for part in parts:
        _finite(move)
        changed = part.transform(move, NoiseSource(), samples)
        if {n: t.shape for n, t in changed.items()} != {n: t.shape for n, t in move.items()}:
            raise ProtectionError(f"{part.name} made other shapes")
        move = changed
    _finite(move)
    made = {
        name: value if name not in move else value - move[name][0].numpy().astype(value.dtype)
        for name, value in old.items()
    }
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in made.items()})


def _finite(move: dict[str, Tensor]) -> None:
    for name, value in move.items():
        if not bool(value.isfinite().all()):
            raise ProtectionError(f"{name}: holds NaN or infinity")


def _array_records(message: Message) -> dict[str, ArrayRecord]:
    return dict(message.content.array_records)


def _numbers(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    return {name: array.numpy() for name, array in record.items()}


def _samples(reply: Message) -> int:
    """How many samples the reply says that it is of, 1 if it does not say; no defence of today's asks."""
    for record in reply.content.metric_records.values():
        count = record.get("num-examples") if isinstance(record, MetricRecord) else None
        if isinstance(count, int | float) and count >= 1:
            return int(count)
    return 1
