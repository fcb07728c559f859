"""Messages between client and server: what is read back, and what is rejected."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from refiner.errors import DataError, SettingError
from refiner.federation.flower.messages import TrainInstructions, from_arrays, read_update, update_content

SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}
UPDATE = torch.arange(8.0)
INSTRUCTIONS = TrainInstructions(round=1, model="lenet", classes=10, batch=4, local_steps=1, lr=0.1)


def arrays(**changes: Any) -> ArrayRecord:
    values = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)} | changes
    return ArrayRecord(
        {
            name: value if isinstance(value, Array) else Array(value)
            for name, value in values.items()
            if value is not None
        }
    )


# Declared as float32, but the bytes are an array of objects, which would be unpickled.
PICKLED = Array(np.zeros(2, np.float32))
PICKLED.data = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (2,), }".ljust(128) + b"\n"
)
# An archive of arrays, which NumPy reads as well, and returns something that has no shape.
ARCHIVE = Array(np.zeros(2, np.float32))
_file = io.BytesIO()
np.savez(_file, a=np.zeros(2, np.float32))
ARCHIVE.data = _file.getvalue()
TOO_LONG = Array(np.zeros(2, np.float32))
TOO_LONG.data = bytes(10**6)


def test_a_message_is_read_as_it_was_written() -> None:
    update, samples = read_update(update_content(UPDATE, SHAPES, 5), SHAPES, UPDATE, max_samples=5)
    assert torch.equal(update, UPDATE) and samples == 5
    assert TrainInstructions.read(INSTRUCTIONS.content(UPDATE, SHAPES)) == INSTRUCTIONS


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (arrays(bias=None), "bias: missing"),
        (arrays(more=np.zeros(1, np.float32)), "'more': not a parameter"),
        (arrays(bias=np.zeros(3, np.float32)), r"bias: float32 \[3\], expected float32 \[2\]"),
        (arrays(bias=np.zeros(2)), "bias: 'float64' of .* expected float32"),
        (arrays(bias=np.array([0, np.inf], np.float32)), "bias: contains NaN or infinity"),
        (arrays(bias=np.array([np.nan, 0], np.float32)), "bias: contains NaN or infinity"),
        (arrays(bias=PICKLED), "bias: unreadable"),
        pytest.param(arrays(bias=ARCHIVE), "bias: not an array, expected float32", marks=pytest.mark.hostile),
        (arrays(bias=TOO_LONG), "bias: 'float32' of 1000000 bytes"),
        (ConfigRecord({}), "arrays: missing"),
    ],
)
def test_invalid_arrays_are_rejected(record: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}") as caught:
        from_arrays(RecordDict({"arrays": record}), SHAPES, UPDATE)
    assert caught.value.field is not None and caught.value.expected is not None


@pytest.mark.parametrize("count", [0, -1, 9, 2.5])
def test_invalid_sample_counts_are_rejected(count: float) -> None:
    content = update_content(UPDATE, SHAPES, 1)
    content["metrics"] = MetricRecord({"num-examples": count})
    with pytest.raises(SettingError, match=f"^num-examples = {count}: expected an integer in"):
        read_update(content, SHAPES, UPDATE, max_samples=8)
    with pytest.raises(SettingError, match=r"^num-examples = None"):
        read_update(RecordDict({"arrays": arrays()}), SHAPES, UPDATE, max_samples=8)
