"""Errors carry the field, the value and what was expected, and never data."""

import pickle

import numpy as np
import pytest
import torch

from refiner import LeNet
from refiner.errors import (
    DataError,
    ProtectionError,
    RefinerError,
    SettingError,
    ThreatModelError,
    UnsupportedModelError,
)


def test_the_message_is_composed_of_field_value_and_expected() -> None:
    error = SettingError(field="rate", value="a\nb", expected="a number in [0, 1]")
    assert str(error) == "rate = 'a\\nb': expected a number in [0, 1]"
    assert (error.field, error.value, error.expected) == ("rate", "a\nb", "a number in [0, 1]")


def test_a_message_of_its_own_keeps_the_attributes() -> None:
    error = DataError("two batches differ", field="x", value=3, expected="one size")
    assert str(error) == "two batches differ"
    assert (error.field, error.value, error.expected) == ("x", 3, "one size")


def test_an_error_without_a_field_has_none() -> None:
    error = ProtectionError("nothing left the client")
    assert (error.field, error.value, error.expected) == (None, None, None)


@pytest.mark.parametrize("array", [torch.full((2, 3), 0.123), np.full((2, 3), 0.123, dtype=np.float32)])
def test_tensors_and_arrays_are_described_and_not_kept(array: object) -> None:
    error = DataError(field="x", value=array, expected="int64 labels")
    assert str(error) == "x = float32 tensor of shape [2, 3]: expected int64 labels"
    assert "0.123" not in repr(vars(error))


def test_a_module_is_described_by_its_class() -> None:
    assert str(DataError(field="x", value=LeNet(), expected="a tensor")) == "x = LeNet: expected a tensor"


def test_a_long_value_is_cut() -> None:
    assert len(str(SettingError(field="path", value="a" * 1000, expected="a folder"))) < 330
    assert len(str(SettingError(field="sizes", value=list(range(1000)), expected="one size"))) < 110


def test_a_threat_model_error_names_the_missing_grants_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ThreatModelError("ggl needs generator", missing=["generator"])))
    assert str(error) == "ggl needs generator; use ThreatModel(generator=True) if the attacker has it"
    assert error.missing == ("generator",)


@pytest.mark.parametrize("kind", [SettingError, DataError, UnsupportedModelError, ProtectionError])
def test_attributes_survive_pickling(kind: type[RefinerError]) -> None:
    error = pickle.loads(pickle.dumps(kind("m", field="f", value=1, expected="e")))
    assert (str(error), error.field, error.value, error.expected) == ("m", "f", 1, "e")
