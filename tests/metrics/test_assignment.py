"""The assignment of a batch: against scipy, against every permutation, on real images."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics import assign, best_order, mse
from refiner.metrics.assignment import hungarian

PICTURES = load_sample().images[:24].view(3, 8, 3, 32, 32)


def total(cost: np.ndarray, columns: np.ndarray) -> float:
    assert sorted(columns.tolist()) == list(range(len(cost)))
    return float(cost[np.arange(len(cost)), columns].sum())


@pytest.mark.parametrize("count", [1, 2, 3, 10, 60])
@pytest.mark.parametrize("kind", ["uniform", "integers with ties", "products", "negative"])
def test_as_cheap_as_scipy(count: int, kind: str) -> None:
    draws = np.random.default_rng(count)
    for _ in range(5):
        cost = {
            "uniform": draws.random((count, count)),
            "integers with ties": draws.integers(0, 4, (count, count)).astype(float),
            # The classical hard case: long chains of exchanges.
            "products": np.outer(np.arange(1.0, count + 1), np.arange(1.0, count + 1)),
            "negative": draws.normal(size=(count, count)) * 1e3,
        }[kind]
        rows, columns = linear_sum_assignment(cost)
        assert total(cost, hungarian(cost)) == pytest.approx(cost[rows, columns].sum(), rel=1e-12, abs=1e-9)


@given(st.integers(1, 5).flatmap(lambda n: arrays(np.float64, (n, n), elements=st.floats(-10, 10, width=32))))
def test_no_permutation_is_cheaper(cost: np.ndarray) -> None:
    least = min(total(cost, np.array(order)) for order in permutations(range(len(cost))))
    assert total(cost, hungarian(cost)) == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("cost", [np.zeros((2, 3)), np.zeros(4), np.full((2, 2), np.nan)])
def test_only_square_and_finite_costs(cost: np.ndarray) -> None:
    with pytest.raises(DataError, match="expected a square matrix of finite numbers"):
        hungarian(cost)


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_a_shuffled_batch_finds_its_order(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(8, generator=generator) for _ in range(3)])
    shuffled = torch.stack([batch[order] for batch, order in zip(PICTURES, orders, strict=True)])
    noisy = (shuffled + 0.1 * torch.randn(shuffled.shape, generator=generator)).clamp(0, 1)
    found = best_order(noisy, PICTURES)
    assert torch.equal(found, orders.argsort(1))
    expected = torch.stack([batch[order] for batch, order in zip(noisy, found, strict=True)])
    assert torch.equal(assign(noisy, PICTURES), expected)


def test_the_summed_error_is_least() -> None:
    """Images that resemble nothing: the best is not to be seen, only to be counted."""
    guesses = torch.rand(2, 5, 3, 8, 8)
    originals = torch.rand(2, 5, 3, 8, 8)
    best = assign(guesses, originals)
    for victim in range(2):
        every = [mse(guesses[victim, list(o)], originals[victim]).sum() for o in permutations(range(5))]
        assert mse(best[victim], originals[victim]).sum() == pytest.approx(float(min(every)), abs=1e-6)


def test_a_single_image_stays() -> None:
    assert torch.equal(assign(PICTURES[:, :1], PICTURES[:, 1:2]), PICTURES[:, :1])


def test_victims_do_not_mix() -> None:
    assert torch.equal(best_order(PICTURES.flip(1), PICTURES), torch.arange(7, -1, -1).expand(3, 8))
    alone = [best_order(PICTURES.flip(0)[v : v + 1], PICTURES[v : v + 1]) for v in range(3)]
    assert torch.equal(best_order(PICTURES.flip(0), PICTURES), torch.cat(alone))


def test_bad_batches_are_refused() -> None:
    with pytest.raises(DataError, match=r"reconstructed: shape \[8, 3, 32, 32\], expected \[V, B, C, H, W\]"):
        assign(PICTURES[0], PICTURES)
    with pytest.raises(DataError, match=r"original: shape list, expected \[V, B, C, H, W\]"):
        assign(PICTURES, [0])  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"reconstructed: shape \[3, 7, 3, 32, 32\], expected \[3, 8, 3, 32, 32\]"
    ):
        assign(PICTURES[:, :7], PICTURES)
    # As many images in all, but of other victims.
    with pytest.raises(DataError, match=r"reconstructed: shape \[8, 3, 3, 32, 32\]"):
        assign(PICTURES.transpose(0, 1), PICTURES)
    broken = PICTURES.clone()
    broken[1, 2, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="reconstructed: NaN or infinity in 1 of 24 images"):
        assign(broken, PICTURES)
