"""The digest by which all clients of a sum have the same order: whatever is changed in one, it is another."""

from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from refiner.errors import DataError, SettingError
from refiner.federation.flower.aggregation import Ask
from refiner.federation.flower.messages import Order, order_digest

ORDER = Order(round=1, model="lenet", classes=10, batch=4, local_steps=1, lr=0.1)
CHANGES: dict[str, Any] = {
    "round": 2,
    "model": "lenet1",
    "classes": 11,
    "batch": 5,
    "local_steps": 2,
    "lr": np.nextafter(0.1, 1.0).item(),
}
ARRAYS: dict[str, Any] = {"ab": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.zeros(2, np.float32)}


def told(order: Order = ORDER, **arrays: Any) -> bytes:
    held = {name: each if isinstance(each, Array) else Array(each) for name, each in arrays.items()}
    return order_digest(order.around(ArrayRecord(held)))


def claimed(array: Any, **changes: Any) -> Array:
    """An array that says something else of itself than its data do."""
    made = Array(array)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_every_setting_is_in_it() -> None:
    assert set(CHANGES) == {field.name for field in fields(Order)}
    changed = [told(replace(ORDER, **{name: value}), **ARRAYS) for name, value in CHANGES.items()]
    # Numbers that moved from one setting to the next.
    changed.append(told(replace(ORDER, batch=1, local_steps=4), **ARRAYS))
    assert len({told(**ARRAYS), *changed}) == len(changed) + 1


def test_everything_of_the_arrays_is_in_it() -> None:
    ab, c = ARRAYS["ab"], ARRAYS["c"]
    bit = ab.copy()
    bit[1, 2] = np.nextafter(bit[1, 2], np.float32(9))
    others: list[dict[str, Any]] = [
        {"ab": bit, "c": c},
        {"ab": ab, "c": -c},  # -0.0
        {"ab": ab.reshape(3, 2), "c": c},
        {"ab": ab.reshape(6), "c": c},
        {"ab": ab.astype(np.float64), "c": c},
        {"ab": ab.view(np.int32), "c": c},
        {"ab": ab, "c": c.reshape(1, 2)},
        {"ab": ab},
        {"ab": ab, "c": c, "d": c},
        # The same under other names, and names that run into each other.
        {"ab": c, "c": ab},
        {"a": ab, "bc": c},
        {"a": ab, "b": c},
        {"abc": ab, "": c},
        # The same numbers, parted otherwise.
        {"ab": ab[:1], "c": np.append(ab[1:], c)},
        {"ab": np.append(ab, c), "c": c[:0]},
        # What an array says of itself alone.
        {"ab": claimed(ab, shape=(3, 2)), "c": c},
        {"ab": claimed(ab, shape=(23,)), "c": c},
        {"ab": claimed(ab, dtype="float64"), "c": c},
        {"ab": claimed(ab, stype="x"), "c": c},
        {"ab": claimed(ab, data=Array(ab).data + b"0"), "c": c},
    ]
    assert len({told(**ARRAYS), *(told(**other) for other in others)}) == len(others) + 1
    # Names that run into the kind, kinds that run into the shape.
    one = {"a": Array("bc", (), "d", b"e"), "f": Array("g", (), "h", b"")}
    for other in (
        {"ab": Array("c", (), "d", b"e"), "f": Array("g", (), "h", b"")},
        {"a": Array("b", (), "cd", b"e"), "f": Array("g", (), "h", b"")},
        {"a": Array("bc", (), "de", b""), "f": Array("g", (), "h", b"")},
        {"a": Array("bc", (), "d", b"ef"), "": Array("g", (), "h", b"")},
    ):
        assert told(**one) != told(**other)


def test_it_is_the_same_for_the_same_order() -> None:
    content = ORDER.around(ArrayRecord({name: Array(each) for name, each in ARRAYS.items()}))
    # In whatever order the names lie, and whatever else a message has.
    turned = RecordDict({"ask": Ask("mask").content()["ask"]})
    turned["arrays"] = ArrayRecord({name: Array(ARRAYS[name]) for name in reversed(ARRAYS)})
    turned["config"] = ConfigRecord(dict(reversed(asdict(ORDER).items())))
    assert order_digest(content) == order_digest(turned) == told(**ARRAYS)
    # As Flower sends records.
    config, arrays = content.config_records["config"], content.array_records["arrays"]
    sent = {
        name: Array.inflate(each.deflate(), {key: part for key, part in each.slice_array()})
        for name, each in arrays.items()
    }
    arrived = RecordDict({"config": ConfigRecord.inflate(config.deflate()), "arrays": ArrayRecord(sent)})
    assert order_digest(arrived) == told(**ARRAYS)


def test_orders_and_digests_that_are_refused() -> None:
    whole = ORDER.around(ArrayRecord({"c": Array(ARRAYS["c"])}))
    more = ConfigRecord({**whole.config_records["config"], "momentum": 0.9})
    with pytest.raises(DataError, match=r"^order: expected .* and nothing else$"):
        order_digest(RecordDict({**whole, "config": more}))
    with pytest.raises(DataError, match=r"^arrays: missing$"):
        order_digest(RecordDict({"config": whole["config"]}))
    with pytest.raises(SettingError, match=r"^model = 3: expected text$"):
        replace(ORDER, model=3)  # type: ignore[arg-type]
    for short in (b"", bytes(31)):
        with pytest.raises(SettingError, match=r"^order = b.*: expected 32 bytes, the digest of an order$"):
            Ask("advertise", 1, (0, 1, 2), 10, short)
    asked = Ask("advertise", 1, (0, 1, 2), 10, bytes(32))
    assert Ask.read(asked.content()) == asked
    for wrong, what in ((7, "a digest as bytes"), (b"", "32 bytes, the digest of an order")):
        content = asked.content()
        content.config_records["ask"]["order"] = wrong
        with pytest.raises(SettingError, match=rf"^order = {wrong!r}: expected {what}$"):
            Ask.read(content)
    content = asked.content()
    del content.config_records["ask"]["order"]
    with pytest.raises(DataError, match=r"^order: expected a step of secure aggregation"):
        Ask.read(content)
