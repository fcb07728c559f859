"""Robust combinations against the Flower strategies that they are named after."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner.errors import DataError, SettingError
from refiner.federation.combine import Krum, Median, TrimmedMean, make_rule

clients = st.integers(1, 12)
seeds = st.integers(0, 2**32)


def updates_of(count: int, seed: int) -> Tensor:
    return torch.randn(count, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(clients, seeds)
def test_the_median_equals_numpys_which_flower_uses(count: int, seed: int) -> None:
    updates = updates_of(count, seed)
    expected = torch.from_numpy(np.median(updates.numpy(), axis=0))
    torch.testing.assert_close(Median().combine(updates, [1] * count), expected)


@given(clients, seeds, st.floats(0, 0.49))
def test_the_trimmed_mean_equals_flowers(count: int, seed: int, trim: float) -> None:
    updates = updates_of(count, seed)
    expected = torch.from_numpy(trim_mean(updates.numpy(), trim))
    torch.testing.assert_close(TrimmedMean(trim).combine(updates, [1] * count), expected)


@given(clients, seeds, st.integers(0, 4), st.integers(1, 5))
def test_krum_equals_flowers(count: int, seed: int, hostile: int, selected: int) -> None:
    updates, samples = updates_of(count, seed), [1 + seed % 7 + client for client in range(count)]
    contents = [
        RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(update.numpy())}),
                "metrics": MetricRecord({"num-examples": number}),
            }
        )
        for update, number in zip(updates, samples, strict=True)
    ]
    chosen = select_multikrum(contents, hostile, selected)
    expected = torch.from_numpy(aggregate_arrayrecords(chosen, "num-examples")["w"].numpy())
    torch.testing.assert_close(Krum(hostile, selected).combine(updates, samples), expected)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("mode", DataError, "combine = 'mode': unknown"),
        ("krum:hostile=-1", SettingError, "hostile = -1: expected an integer ≥ 0"),
        ("trimmed-mean:trim=0.5", SettingError, "trim = 0.5: expected a number in"),
    ],
)
def test_wrong_names_and_settings_raise(text: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        make_rule(text)
