"""Identification: ranks against plain loops, uniform guesses, ties, chunks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import identify, lpips

IMAGES = load_sample().images[:40]
METHODS = ("pixels", "lpips")


def noisy(images: Tensor, deviation: float, seed: int = 0) -> Tensor:
    draws = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + deviation * draws).clamp(0, 1)


@pytest.mark.parametrize("by", METHODS)
def test_a_copy_is_identified(by: str) -> None:
    result = identify(IMAGES, IMAGES, by)
    assert result.ranks.tolist() == [1.0] * 40
    assert (result.by, result.candidates, result.top1) == (by, 40, 1.0)
    torch.testing.assert_close(result.p_values, torch.full((40,), 1 / 40))


def test_ranks_by_pixels_match_a_plain_loop() -> None:
    """NumPy's correlation of pixels minus their channel's mean."""
    reconstructed = noisy(IMAGES.roll(1, 0) * 0.3 + IMAGES * 0.3, 0.3)
    a, b = ((p - p.mean((2, 3), keepdim=True)).double().flatten(1).numpy() for p in (reconstructed, IMAGES))
    expected = []
    for i in range(40):
        similarity = [np.corrcoef(a[i], b[j])[0, 1] for j in range(40)]
        expected.append(1.0 + sum(other > similarity[i] for other in similarity))
    result = identify(reconstructed, IMAGES).ranks.tolist()
    assert result == expected and max(result) > 1


def test_ranks_by_lpips_match_a_plain_loop() -> None:
    original = IMAGES[:12]
    reconstructed = noisy(original, 0.4)
    expected = []
    for i in range(12):
        distances = lpips(reconstructed[i : i + 1].expand_as(original), original)
        expected.append(1.0 + int((distances < distances[i]).sum()))
    result = identify(reconstructed, original, "lpips").ranks.tolist()
    assert result == expected and max(result) > 1


@settings(max_examples=20)
@given(st.floats(0.1, 1), st.floats(0, 1), st.integers(0, 2**31))
def test_ranks_by_pixels_ignore_brightness_and_contrast(
    contrast: float, brightness: float, seed: int
) -> None:
    reconstructed = noisy(IMAGES[:10], 0.5, seed)
    changed = reconstructed * contrast + brightness * (1 - contrast)
    before, after = identify(reconstructed, IMAGES[:10]), identify(changed, IMAGES[:10])
    assert torch.equal(before.ranks, after.ranks)


def test_a_uniform_guess_gets_the_middle_rank_by_pixels() -> None:
    """Even each image's own mean colour: all candidates are equally close."""
    mean_colour = IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES)
    rounded = 0.5 + 1e-8 * IMAGES.double()
    for guess in (torch.full_like(IMAGES, 0.5), mean_colour, torch.zeros_like(IMAGES), rounded):
        result = identify(guess, IMAGES)
        assert result.ranks.tolist() == [20.5] * 40
        assert result.top1 == 0


@pytest.mark.parametrize("by", METHODS)
def test_one_guess_for_all_has_every_rank_once(by: str) -> None:
    """So rank / candidates is a p-value, as the verdict assumes."""
    guess = noisy(IMAGES.mean(0, keepdim=True), 0.05).expand_as(IMAGES)
    assert sorted(identify(guess, IMAGES, by).ranks.tolist()) == [float(r) for r in range(1, 41)]


def test_pixels_tolerate_noise_and_lpips_a_flip() -> None:
    with_noise, mirrored = noisy(IMAGES, 0.6), IMAGES.flip(-1)
    assert identify(with_noise, IMAGES).top1 == 1
    assert identify(with_noise, IMAGES, "lpips").top1 < 0.3
    assert identify(mirrored, IMAGES, "lpips").top1 > 0.9 > identify(mirrored, IMAGES).top1


@pytest.mark.parametrize("by", METHODS)
def test_equal_candidates_share_the_mean_of_their_ranks(by: str) -> None:
    twice = torch.cat([IMAGES[:5], IMAGES[:1]])
    result = identify(twice, twice, by)
    assert result.ranks.tolist() == [1.5, 1, 1, 1, 1, 1.5]
    assert result.top1 == pytest.approx(4 / 6)


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("chunk", [7, 39])
def test_ranks_do_not_depend_on_the_chunk(by: str, chunk: int) -> None:
    reconstructed = noisy(IMAGES, 0.8)
    one_chunk = identify(reconstructed, IMAGES, by, others=IMAGES.flip(-1))
    many_chunks = identify(reconstructed, IMAGES, by, others=IMAGES.flip(-1), chunk=chunk)
    assert torch.equal(one_chunk.ranks, many_chunks.ranks)


@pytest.mark.parametrize("by", METHODS)
def test_others_are_candidates(by: str) -> None:
    result = identify(IMAGES[:1], IMAGES[:1], by, others=IMAGES[1:].double())
    assert (result.ranks.tolist(), result.candidates) == ([1.0], 40)
    # A reconstruction of another image, which is among the others and closer.
    assert identify(IMAGES[1:2], IMAGES[:1], by, others=IMAGES[1:]).ranks.item() > 1


def test_invalid_input_raises() -> None:
    with pytest.raises(DataError, match="1 candidate, expected 2 or more to rank; pass others"):
        identify(IMAGES[:1], IMAGES[:1])
    with pytest.raises(DataError, match=r"others: images of shape \[1, 32, 32\], expected \[3, 32, 32\]"):
        identify(IMAGES, IMAGES, others=IMAGES[:, :1])
    with pytest.raises(DataError, match="others: NaN or infinity"):
        identify(IMAGES, IMAGES, others=IMAGES * torch.nan)
    with pytest.raises(SettingError, match="by = 'eye': expected one of 'pixels', 'lpips'"):
        identify(IMAGES, IMAGES, "eye")
    with pytest.raises(SettingError, match="chunk = 0: expected an integer ≥ 1"):
        identify(IMAGES, IMAGES, chunk=0)
