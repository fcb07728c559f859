"""The assignment of a batch: against every permutation, and on real images."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics import assign, best_order, mse

IMAGES = load_sample().images[:24].view(3, 8, 3, 32, 32)


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(0, 2**31))
def test_no_permutation_has_a_lower_error(count: int, seed: int) -> None:
    """Against brute force, for images that resemble nothing and for repeated ones."""
    generator = torch.Generator().manual_seed(seed)
    reconstructed, original = torch.rand(2, 1, count, 1, 4, 4, generator=generator)
    original[0, 0] = original[0, -1]
    errors = [float(mse(reconstructed[0, list(o)], original[0]).sum()) for o in permutations(range(count))]
    order = best_order(reconstructed, original)[0].tolist()
    assert sorted(order) == list(range(count))
    assert float(mse(reconstructed[0, order], original[0]).sum()) == pytest.approx(min(errors), abs=1e-6)


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_a_shuffled_noisy_batch_is_put_in_order(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(8, generator=generator) for _ in range(3)])
    shuffled = torch.stack([batch[order] for batch, order in zip(IMAGES, orders, strict=True)])
    noisy = (shuffled + 0.1 * torch.randn(shuffled.shape, generator=generator)).clamp(0, 1)
    order = best_order(noisy, IMAGES)
    assert torch.equal(order, orders.argsort(1))
    expected = torch.stack([batch[row] for batch, row in zip(noisy, order, strict=True)])
    assert torch.equal(assign(noisy, IMAGES), expected)


def test_a_batch_of_one_is_unchanged() -> None:
    assert torch.equal(assign(IMAGES[:, :1], IMAGES[:, 1:2]), IMAGES[:, :1])


def test_images_are_not_assigned_across_victims() -> None:
    assert torch.equal(best_order(IMAGES.flip(1), IMAGES), torch.arange(7, -1, -1).expand(3, 8))
    alone = [best_order(IMAGES.flip(0)[v : v + 1], IMAGES[v : v + 1]) for v in range(3)]
    assert torch.equal(best_order(IMAGES.flip(0), IMAGES), torch.cat(alone))


def test_invalid_batches_raise() -> None:
    with pytest.raises(DataError, match=r"reconstructed: shape \[8, 3, 32, 32\], expected \[V, B, C, H, W\]"):
        assign(IMAGES[0], IMAGES)
    with pytest.raises(DataError, match=r"original: shape list, expected \[V, B, C, H, W\]"):
        assign(IMAGES, [0])  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"reconstructed: shape \[3, 7, 3, 32, 32\], expected \[3, 8, 3, 32, 32\]"
    ):
        assign(IMAGES[:, :7], IMAGES)
    # The same number of images, but of other victims.
    with pytest.raises(DataError, match=r"reconstructed: shape \[8, 3, 3, 32, 32\]"):
        assign(IMAGES.transpose(0, 1), IMAGES)
    broken = IMAGES.clone()
    broken[1, 2, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="reconstructed: NaN or infinity in 1 of 24 images"):
        assign(broken, IMAGES)
