"""Partitions: every sample belongs to one client, every client has samples, a seed determines the result."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.data import dirichlet, iid, label_counts, load_data, make_partition
from refiner.errors import DataError, SettingError

label_tensors = st.lists(st.integers(0, 7), min_size=1, max_size=200).map(torch.tensor)


def check_partition(parts: list[Tensor], samples: int, clients: int) -> None:
    assert len(parts) == clients and all(len(part) > 0 for part in parts)
    assert all(part.dtype == torch.int64 for part in parts)
    assert all(bool((part.diff() > 0).all()) for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(samples))


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(labels=label_tensors, clients=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_iid(labels: Tensor, clients: int, seed: int) -> None:
    assume(clients <= len(labels))
    parts = iid(labels, clients, seed)
    check_partition(parts, len(labels), clients)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(map(torch.equal, parts, iid(labels, clients, seed)))


@settings(max_examples=60)
@given(
    labels=label_tensors,
    clients=st.integers(1, 10),
    concentration=st.floats(1e-4, 1e6),
    seed=st.integers(0, 2**32 - 1),
)
def test_dirichlet(labels: Tensor, clients: int, concentration: float, seed: int) -> None:
    assume(clients <= len(labels))
    try:
        parts = dirichlet(labels, clients, concentration, seed)
    except DataError as error:
        assert f"leaves one of {clients} clients without a sample" in str(error) and "\n" not in str(error)
        return
    check_partition(parts, len(labels), clients)
    assert all(map(torch.equal, parts, dirichlet(labels, clients, concentration, seed)))


@settings(max_examples=30)
@given(clients=st.integers(1, 12), seed=st.integers(0, 1000))
def test_large_concentration_gives_equal_parts(clients: int, seed: int) -> None:
    labels = torch.arange(6000) % 5
    counts = label_counts(labels, dirichlet(labels, clients, 1e6, seed), 5)
    assert (counts - 1200 / clients).abs().max() <= 1200 * 0.02


def test_smaller_concentration_gives_more_skew() -> None:
    labels = torch.arange(10_000) % 10

    def spread(concentration: float) -> float:
        tables = [
            label_counts(labels, dirichlet(labels, 10, concentration, seed), 10).float() for seed in range(20)
        ]
        return float(torch.stack(tables).std())

    spreads = [spread(concentration) for concentration in (0.1, 1.0, 10.0, 1000.0)]
    assert spreads == sorted(spreads, reverse=True)
    # The variance of a Dirichlet proportion is (K - 1) / (K² (K α + 1)), here times 1,000 samples per class.
    assert spreads[1] == pytest.approx(1000 * (9 / (100 * 11)) ** 0.5, rel=0.05)


def test_clients_and_samples_of_a_class_are_drawn_at_random() -> None:
    labels = torch.arange(2000) % 2
    first = [dirichlet(labels, 4, 0.2, seed)[0] for seed in range(200)]
    assert sum(map(len, first)) / 200 == pytest.approx(500, rel=0.15)
    # Which samples of a class a client gets is random too.
    even = [dirichlet(labels, 4, 1000.0, seed)[0] for seed in range(50)]
    assert len({tuple(part[:9].tolist()) for part in even}) == 50


def test_other_seeds_give_other_partitions() -> None:
    labels = torch.arange(100) % 10
    for make in (iid, lambda *a: dirichlet(a[0], a[1], 1.0, a[2])):
        assert not torch.equal(torch.cat(make(labels, 5, 0)), torch.cat(make(labels, 5, 1)))


def test_classes_may_have_gaps_and_one_sample() -> None:
    labels = torch.tensor([0, 5, 5, 5, 9])
    check_partition(dirichlet(labels, 2, 1.0, 0), 5, 2)
    assert label_counts(labels, iid(labels, 1), 10).tolist() == [[1, 0, 0, 0, 0, 3, 0, 0, 0, 1]]


def test_partition_with_an_empty_client_raises() -> None:
    labels = torch.arange(1000) % 10
    with pytest.raises(DataError, match=r"concentration = 0\.01: leaves one of 100 clients without a sample"):
        dirichlet(labels, 100, 0.01)
    for make in (iid, dirichlet):
        with pytest.raises(
            SettingError, match=r"clients = 1001: expected an integer in \[1, 1000\], the number of samples"
        ):
            make(labels, 1001)


@pytest.mark.parametrize("make", [iid, dirichlet])
def test_settings_are_checked(make: Callable[..., list[Tensor]]) -> None:
    labels = torch.arange(10)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(SettingError, match="clients = "):
            make(labels, wrong)
    with pytest.raises(SettingError, match="seed = -1"):
        make(labels, 2, seed=-1)
    for bad in (torch.zeros(0).long(), torch.zeros(3), torch.zeros(2, 2).long()):
        with pytest.raises(DataError, match="labels: "):
            make(bad, 1)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 1e7, True, "1"])
def test_concentrations_are_checked(value: float) -> None:
    with pytest.raises(SettingError, match=r"concentration = .*: expected a number in \[0\.0001, 1e\+06\]"):
        dirichlet(torch.arange(10), 2, value)


def test_partition_by_text() -> None:
    labels = load_data("sample").labels
    for text, parts in {
        "iid": iid(labels, 5, 3),
        "dirichlet": dirichlet(labels, 5, 1.0, 3),
        "dirichlet:0.5": dirichlet(labels, 5, 0.5, 3),
        "dirichlet:1e2": dirichlet(labels, 5, 100.0, 3),
    }.items():
        assert all(map(torch.equal, make_partition(text, labels, 5, 3), parts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlt:1", "partition = 'dirichlt': unknown; did you mean 'dirichlet'? Known: iid, dirichlet"),
        ("iid:2", "partition = 'iid:2': expected iid or dirichlet:CONCENTRATION"),
        ("dirichlet:", "partition = 'dirichlet:': expected iid or dirichlet:CONCENTRATION"),
        ("dirichlet:a", "partition = 'dirichlet:a': expected iid or dirichlet:CONCENTRATION"),
        ("dirichlet:nan", "concentration = nan: expected a number in [0.0001, 1e+06]"),
        ("", "partition = '': unknown; Known: iid, dirichlet"),
    ],
)
def test_invalid_text_raises(text: str, message: str) -> None:
    with pytest.raises((DataError, SettingError)) as error:
        make_partition(text, torch.arange(10), 2)
    assert str(error.value) == message
