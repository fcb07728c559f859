"""The digest of the training instructions: any change of settings or parameters changes it."""

from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from refiner.errors import DataError, SettingError
from refiner.federation.flower.messages import TrainInstructions, instructions_digest
from refiner.federation.flower.secure_messages import StepRequest

INSTRUCTIONS = TrainInstructions(round=1, model="lenet", classes=10, batch=4, local_steps=1, lr=0.1)
CHANGES: dict[str, Any] = {
    "round": 2,
    "model": "lenet1",
    "classes": 11,
    "batch": 5,
    "local_steps": 2,
    "lr": np.nextafter(0.1, 1.0).item(),
}
ARRAYS: dict[str, Any] = {"ab": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.zeros(2, np.float32)}


def digest_of(instructions: TrainInstructions = INSTRUCTIONS, **arrays: Any) -> bytes:
    record = {name: each if isinstance(each, Array) else Array(each) for name, each in arrays.items()}
    return instructions_digest(instructions.content_with(ArrayRecord(record)))


def mislabelled(array: Any, **changes: Any) -> Array:
    """An array whose description does not match its data."""
    result = Array(array)
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def test_the_digest_depends_on_every_setting() -> None:
    assert set(CHANGES) == {field.name for field in fields(TrainInstructions)}
    changed = [digest_of(replace(INSTRUCTIONS, **{name: value}), **ARRAYS) for name, value in CHANGES.items()]
    # Two settings with their values exchanged.
    changed.append(digest_of(replace(INSTRUCTIONS, batch=1, local_steps=4), **ARRAYS))
    assert len({digest_of(**ARRAYS), *changed}) == len(changed) + 1


def test_the_digest_depends_on_names_shapes_types_and_values_of_all_arrays() -> None:
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
        # Other names, and names whose concatenation is the same.
        {"ab": c, "c": ab},
        {"a": ab, "bc": c},
        {"a": ab, "b": c},
        {"abc": ab, "": c},
        # The same numbers, split differently.
        {"ab": ab[:1], "c": np.append(ab[1:], c)},
        {"ab": np.append(ab, c), "c": c[:0]},
        # Only the description of an array.
        {"ab": mislabelled(ab, shape=(3, 2)), "c": c},
        {"ab": mislabelled(ab, shape=(23,)), "c": c},
        {"ab": mislabelled(ab, dtype="float64"), "c": c},
        {"ab": mislabelled(ab, stype="x"), "c": c},
        {"ab": mislabelled(ab, data=Array(ab).data + b"0"), "c": c},
    ]
    assert len({digest_of(**ARRAYS), *(digest_of(**other) for other in others)}) == len(others) + 1
    # Names, types and data whose concatenations are the same.
    one = {"a": Array("bc", (), "d", b"e"), "f": Array("g", (), "h", b"")}
    for other in (
        {"ab": Array("c", (), "d", b"e"), "f": Array("g", (), "h", b"")},
        {"a": Array("b", (), "cd", b"e"), "f": Array("g", (), "h", b"")},
        {"a": Array("bc", (), "de", b""), "f": Array("g", (), "h", b"")},
        {"a": Array("bc", (), "d", b"ef"), "": Array("g", (), "h", b"")},
    ):
        assert digest_of(**one) != digest_of(**other)


def test_the_digest_is_the_same_for_the_same_instructions() -> None:
    content = INSTRUCTIONS.content_with(ArrayRecord({name: Array(each) for name, each in ARRAYS.items()}))
    # In any order of the names, and with other records in the message.
    reversed_content = RecordDict({"request": StepRequest("mask").content()["request"]})
    reversed_content["arrays"] = ArrayRecord({name: Array(ARRAYS[name]) for name in reversed(ARRAYS)})
    reversed_content["config"] = ConfigRecord(dict(reversed(asdict(INSTRUCTIONS).items())))
    assert instructions_digest(content) == instructions_digest(reversed_content) == digest_of(**ARRAYS)
    # After Flower's serialization.
    config, arrays = content.config_records["config"], content.array_records["arrays"]
    received = {
        name: Array.inflate(each.deflate(), {key: part for key, part in each.slice_array()})
        for name, each in arrays.items()
    }
    arrived = RecordDict({"config": ConfigRecord.inflate(config.deflate()), "arrays": ArrayRecord(received)})
    assert instructions_digest(arrived) == digest_of(**ARRAYS)


def test_malformed_instructions_and_digests_raise() -> None:
    content = INSTRUCTIONS.content_with(ArrayRecord({"c": Array(ARRAYS["c"])}))
    unknown_field = ConfigRecord({**content.config_records["config"], "momentum": 0.9})
    with pytest.raises(DataError, match=r"^instructions: expected .* and nothing else$"):
        instructions_digest(RecordDict({**content, "config": unknown_field}))
    with pytest.raises(DataError, match=r"^arrays: missing$"):
        instructions_digest(RecordDict({"config": content["config"]}))
    with pytest.raises(SettingError, match=r"^model = 3: expected a string$"):
        replace(INSTRUCTIONS, model=3)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"^model = 'a{57}\.\.\.': expected 1000 characters or fewer$"):
        replace(INSTRUCTIONS, model="a" * 1001)
    for short in (b"", bytes(31)):
        with pytest.raises(SettingError, match=r"^instructions_digest = b.*: expected 32 bytes$"):
            StepRequest("advertise", 1, (0, 1, 2), 10, short)
    request = StepRequest("advertise", 1, (0, 1, 2), 10, bytes(32))
    assert StepRequest.read(request.content()) == request
    for wrong in (7, b""):
        content = request.content()
        content.config_records["request"]["instructions_digest"] = wrong
        with pytest.raises(SettingError, match=rf"^instructions_digest = {wrong!r}: expected 32 bytes$"):
            StepRequest.read(content)
    content = request.content()
    del content.config_records["request"]["instructions_digest"]
    with pytest.raises(DataError, match=r"^request: expected a step of secure aggregation"):
        StepRequest.read(content)
