"""A Flower mod that passes the change of a client's weights through a defence before they are sent."""

import sys
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from refiner.core.finite import make_finite_
from refiner.core.noise import NoiseSource
from refiner.defenses.base import Defense
from refiner.defenses.chain import gradient_transforms
from refiner.defenses.gradient_transform import GradientTransform
from refiner.errors import DataError, ProtectionError, SettingError

Next = Callable[[Message, Context], Message]
Arrays = dict[str, NDArray[np.generic]]

DEFENSE_FAILED = 101
"""The code of the error reply that replaces weights that could not be protected."""


def defense_mod(defense: Defense) -> Callable[[Message, Context, Next], Message]:
    """A Flower mod that protects the weights that an existing client returns.

    The client receives weights, trains, and returns weights. Their difference goes through `defense` in the
    place of a gradient. For one step of SGD it is lr × gradient, so choose a clipping norm or a noise scale
    for that magnitude. A reply that can't be protected is replaced by an error without arrays: one with a
    `ConfigRecord`, whose bytes and texts no defence reads, or an evaluation that returns arrays. Metrics are
    passed on as they are.

    Args:
        defense: A defence that needs only the gradient: pruning, quantisation, DP on the whole update, or a
            `Chain` of these.

    Returns:
        A mod for `@app.train(mods=[...])` or `ClientApp(mods=[...])`.

    Raises:
        SettingError: If the defence needs the client's data, which a mod does not see.

    >>> from refiner.defenses import DPGaussian, Refiner
    >>> mod = defense_mod(DPGaussian(magnitude=1e-3))
    >>> defense_mod(Refiner())
    Traceback (most recent call last):
    refiner.errors.SettingError: defense = refiner: needs the data, which a mod doesn't see; use ...
    """
    transforms = _transforms(defense)

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        try:
            _check_records(reply)
            if message.metadata.message_type.partition(".")[0] != "train":
                _check_no_arrays(reply)
                return reply
            received = {key: _to_numpy(record) for key, record in _array_records(message).items()}
            content = _protect_reply(reply, received, transforms)
        except Exception as error:  # whatever fails, the reply is an error without arrays
            print(f"refiner: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            reason = f"{defense.name} could not protect the reply; no arrays were sent; see the client's log"
            # In reply to the request: Flower never delivers an error in reply to a reply.
            return Message(Error(code=DEFENSE_FAILED, reason=reason), reply_to=message)
        return Message(content, reply_to=message)

    return mod


def _transforms(defense: Defense) -> list[GradientTransform]:
    """The transforms of a defence that needs only the gradient."""
    if not isinstance(defense, Defense):
        raise SettingError(
            f"defense = {type(defense).__name__}: expected a Defense such as Pruning()",
            field="defense",
            value=type(defense).__name__,
            expected="a Defense such as Pruning()",
        )
    transforms = list(gradient_transforms(defense))
    if not transforms:
        raise SettingError(
            f"defense = {defense.name}: needs the data, which a mod doesn't see; "
            "use refiner.backward in the client's training loop",
            field="defense",
            value=defense.name,
            expected="a defence that needs only the gradient",
        )
    return transforms


def _protect_reply(
    reply: Message, received: dict[str, Arrays], transforms: list[GradientTransform]
) -> RecordDict:
    """The content of a reply with every array record protected."""
    content = RecordDict({key: record for key, record in reply.content.items() if key not in received})
    for key, record in _array_records(reply).items():
        if key not in received:
            raise DataError(
                f"{key}: the reply has arrays that the request did not have",
                field=key,
                value=None,
                expected="only arrays of the request",
            )
        content[key] = _protect_record(_to_numpy(record), received[key], transforms, _num_examples(reply))
    if not content.array_records:
        raise DataError(
            "the reply has no arrays", field="reply", value=None, expected="at least one array record"
        )
    return content


def _protect_record(
    new: Arrays, old: Arrays, transforms: list[GradientTransform], samples: int
) -> ArrayRecord:
    """The old weights minus the protected difference between old and new weights."""
    if set(new) != set(old):
        name = sorted(set(new) ^ set(old))[0]
        raise DataError(
            f"{name}: only in the request or only in the reply",
            field=name,
            value=None,
            expected="the same arrays in the request and in the reply",
        )
    update: dict[str, Tensor] = {}
    for name, value in new.items():
        if value.shape != old[name].shape or value.dtype != old[name].dtype:
            raise DataError(
                f"{name}: {value.dtype} {list(value.shape)}, "
                f"expected {old[name].dtype} {list(old[name].shape)} as in the request",
                field=name,
                value=value,
                expected=f"{old[name].dtype} {list(old[name].shape)}",
            )
        if np.issubdtype(value.dtype, np.floating):
            update[name] = (torch.from_numpy(old[name].copy()) - torch.from_numpy(value.copy()))[None]
        elif not np.array_equal(value, old[name]):
            raise DataError(
                f"{name}: {value.dtype} array changed; only floating-point arrays can be protected",
                field=name,
                value=value,
                expected="an unchanged array, or a floating-point one",
            )
    for transform in transforms:
        _make_finite(update)
        protected = transform.transform(update, NoiseSource(), samples)
        if {n: t.shape for n, t in protected.items()} != {n: t.shape for n, t in update.items()}:
            raise ProtectionError(f"{transform.name} changed the shapes of the update")
        update = protected
    _make_finite(update)
    weights = {
        name: value if name not in update else value - update[name][0].numpy().astype(value.dtype)
        for name, value in old.items()
    }
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in weights.items()})


def _make_finite(update: dict[str, Tensor]) -> None:
    """Replaced, not refused: the server chooses the weights, and a refusal would tell it about the data."""
    for value in update.values():
        make_finite_(value)


def _check_records(reply: Message) -> None:
    """Raise if a reply has records that no defence reads."""
    for key, record in reply.content.items():
        if not isinstance(record, ArrayRecord | MetricRecord):
            raise DataError(
                f"{key}: a {type(record).__name__} can't be protected",
                field=key,
                value=type(record).__name__,
                expected="arrays and metrics",
            )


def _check_no_arrays(reply: Message) -> None:
    for key in reply.content.array_records:
        raise DataError(
            f"{key}: arrays in the reply to an evaluation", field=key, value="arrays", expected="metrics"
        )


def _array_records(message: Message) -> dict[str, ArrayRecord]:
    return dict(message.content.array_records)


def _to_numpy(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def _num_examples(reply: Message) -> int:
    """The number of samples that the reply names, or 1; none of the library's transforms uses it."""
    for record in reply.content.metric_records.values():
        count = record.get("num-examples") if isinstance(record, MetricRecord) else None
        if isinstance(count, int | float) and count >= 1:
            return int(count)
    return 1
