"""Whole rounds in one process: the mean, dropouts at every step, too few clients; and the server's view."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.core import Task
from refiner.defenses import NoDefense
from refiner.errors import DataError, SettingError
from refiner.federation.secure import STEPS, AggregationError, FixedPoint, secure_mean, server_view
from refiner.models import MLP


@settings(max_examples=15)
@given(st.data(), st.integers(2, 6), st.integers(1, 5), st.sampled_from([(20, 32), (32, 64), (44, 64)]))
def test_the_result_is_the_weighted_mean(
    data: st.DataObject, clients: int, size: int, bits: tuple[int, int]
) -> None:
    values = st.lists(st.floats(-4, 4, width=32), min_size=size, max_size=size)
    updates = torch.tensor(data.draw(st.lists(values, min_size=clients, max_size=clients)))
    weights = data.draw(st.lists(st.integers(1, 50), min_size=clients, max_size=clients))
    result = secure_mean(updates, weights, encoding=FixedPoint(4, *bits))
    column = torch.tensor(weights, dtype=torch.float64)[:, None]
    expected = (column * updates.double()).sum(0) / column.sum()
    # Each client rounds by half a unit at most; float64 adds its own rounding.
    assert (result.mean - expected).abs().max() <= clients * 0.5 / (2 ** bits[0] * sum(weights)) + 1e-14
    assert result.weight == sum(weights)
    assert result.clients == tuple(range(clients))


def test_the_sum_is_exact_to_the_last_bit() -> None:
    updates = torch.randint(-(2**20), 2**20, (8, 50)).double() / 2**16
    assert (secure_mean(updates).mean * 8 == updates.sum(0)).all()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_round_completes_with_dropouts_at_any_step(step: str, number: int) -> None:
    updates, weights = torch.randn(5, 40), [3, 1, 4, 1, 5]
    dropouts = dict.fromkeys([3, 0][:number], step)
    result = secure_mean(updates, weights, threshold=3, dropouts=dropouts)
    # A masked update counts even if its sender drops out afterwards.
    survivors = [c for c in range(5) if c not in dropouts or STEPS.index(step) > STEPS.index("mask")]
    column = torch.tensor([weights[c] for c in survivors], dtype=torch.float64)[:, None]
    expected = (column * updates[survivors].double()).sum(0) / column.sum()
    assert result.clients == tuple(survivors)
    assert torch.allclose(result.mean, expected, atol=1e-9, rtol=0)


def test_a_round_completes_with_dropouts_at_different_steps() -> None:
    updates = torch.randn(8, 10)
    result = secure_mean(updates, threshold=5, dropouts={1: "share", 4: "mask", 6: "unmask"})
    survivors = [0, 2, 3, 5, 6, 7]
    assert result.clients == tuple(survivors)
    assert torch.allclose(result.mean, updates[survivors].double().mean(0), atol=1e-9, rtol=0)


@pytest.mark.hostile
@pytest.mark.processes
def test_a_training_survives_a_tenth_of_its_clients_dropping_out_in_every_round() -> None:
    """Another client at another step each time; gradient descent on the mean still converges."""
    targets, parameters = torch.linspace(-1, 1, 10)[:, None].expand(10, 3), torch.full((3,), 5.0)
    for round in range(12):
        dropouts = {(3 * round) % 10: STEPS[round % len(STEPS)]}
        parameters = parameters - 0.4 * secure_mean(parameters - targets, dropouts=dropouts).mean.float()
    assert parameters.abs().max() < 0.1


@pytest.mark.parametrize("step", STEPS)
def test_fewer_clients_than_the_threshold_raise(step: str) -> None:
    with pytest.raises(AggregationError, match=rf"^{step}: 2 of 5 clients answered, expected 3 or more$"):
        secure_mean(torch.randn(5, 4), threshold=3, dropouts=dict.fromkeys([0, 1, 2], step))


def test_the_server_view_is_the_result_of_the_protocol() -> None:
    task = Task(MLP(input_shape=(3, 8, 8), hidden=8), example=torch.rand(1, 3, 8, 8))
    x, y = torch.rand(6, 2, 3, 8, 8), torch.randint(10, (6, 2))
    update = NoDefense().protect(task, x, y)
    means = server_view(update, clients=3)
    assert means.shape == (2, task.size)
    for mean, group in zip(means, update.flat().split(3), strict=True):
        assert (secure_mean(group).mean.to(mean) == mean).all()
    assert torch.allclose(means[0], update.flat()[:3].mean(0), atol=1e-6)
    with pytest.raises(SettingError, match=r"clients = 4: expected a divisor of the update's 6 victims"):
        server_view(update, clients=4)


def test_wrong_arguments_raise_one_line_errors() -> None:
    updates = torch.zeros(3, 2)
    for call, message in [
        (lambda: secure_mean(updates[0]), r"updates: expected a tensor \[n, N\]"),
        (lambda: secure_mean(updates, [1]), r"weights = \[1\]: expected 3 integers, one for each client"),
        (lambda: secure_mean(updates, [1, 1, 0]), "weight = 0: expected an integer ≥ 1"),
        (
            lambda: secure_mean(updates, dropouts={5: "mask"}),
            r"dropouts = 5: expected an integer in \[0, 2\]",
        ),
        (
            lambda: secure_mean(updates, dropouts={1: "lunch"}),
            r"dropouts\[1\] = 'lunch': expected one of",
        ),
    ]:
        with pytest.raises((DataError, SettingError), match=message):
            call()


def test_large_vectors_wrap_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates = torch.full((3, 300_000), -64.0)
        assert (secure_mean(updates).mean == -64).all()
