"""Identification: ranks against plain loops, what wins nothing, ties, chunks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import identify, lpips

PICTURES = load_sample().images[:40]
WAYS = ("pixels", "lpips")


def noisy(images: Tensor, deviation: float, seed: int = 0) -> Tensor:
    draws = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + deviation * draws).clamp(0, 1)


@pytest.mark.parametrize("by", WAYS)
def test_a_copy_is_found(by: str) -> None:
    found = identify(PICTURES, PICTURES, by)
    assert found.ranks.tolist() == [1.0] * 40
    assert (found.by, found.candidates, found.top1) == (by, 40, 1.0)
    torch.testing.assert_close(found.shares, torch.full((40,), 1 / 40))


def test_pixels_against_a_plain_loop() -> None:
    """numpy's correlation of pixels that have lost their channel's mean."""
    reconstructed = noisy(PICTURES.roll(1, 0) * 0.3 + PICTURES * 0.3, 0.3)
    a, b = ((p - p.mean((2, 3), keepdim=True)).double().flatten(1).numpy() for p in (reconstructed, PICTURES))
    expected = []
    for i in range(40):
        likeness = [np.corrcoef(a[i], b[j])[0, 1] for j in range(40)]
        expected.append(1.0 + sum(other > likeness[i] for other in likeness))
    found = identify(reconstructed, PICTURES).ranks.tolist()
    assert found == expected and max(found) > 1


def test_lpips_against_a_plain_loop() -> None:
    original = PICTURES[:12]
    reconstructed = noisy(original, 0.4)
    expected = []
    for i in range(12):
        distances = lpips(reconstructed[i : i + 1].expand_as(original), original)
        expected.append(1.0 + int((distances < distances[i]).sum()))
    found = identify(reconstructed, original, "lpips").ranks.tolist()
    assert found == expected and max(found) > 1


@settings(max_examples=20)
@given(st.floats(0.1, 1), st.floats(0, 1), st.integers(0, 2**31))
def test_brightness_and_contrast_change_no_rank_by_pixels(
    contrast: float, brightness: float, seed: int
) -> None:
    reconstructed = noisy(PICTURES[:10], 0.5, seed)
    changed = reconstructed * contrast + brightness * (1 - contrast)
    before, after = identify(reconstructed, PICTURES[:10]), identify(changed, PICTURES[:10])
    assert torch.equal(before.ranks, after.ranks)


def test_a_flat_guess_wins_nothing_by_pixels() -> None:
    """Not even each image's own mean colour: all candidates are equally near."""
    own = PICTURES.mean((2, 3), keepdim=True).expand_as(PICTURES)
    rounded = 0.5 + 1e-8 * PICTURES.double()
    for guess in (torch.full_like(PICTURES, 0.5), own, torch.zeros_like(PICTURES), rounded):
        found = identify(guess, PICTURES)
        assert found.ranks.tolist() == [20.5] * 40
        assert found.top1 == 0


@pytest.mark.parametrize("by", WAYS)
def test_one_guess_for_all_has_every_rank_once(by: str) -> None:
    """So a share of r of blind images ranks in the first r: that is what the verdict counts on."""
    guess = noisy(PICTURES.mean(0, keepdim=True), 0.05).expand_as(PICTURES)
    assert sorted(identify(guess, PICTURES, by).ranks.tolist()) == [float(r) for r in range(1, 41)]


def test_what_each_way_finds() -> None:
    """Pixels find what is buried in noise; LPIPS finds what is mirrored."""
    buried, mirrored = noisy(PICTURES, 0.6), PICTURES.flip(-1)
    assert identify(buried, PICTURES).top1 == 1
    assert identify(buried, PICTURES, "lpips").top1 < 0.3
    assert identify(mirrored, PICTURES, "lpips").top1 > 0.9 > identify(mirrored, PICTURES).top1


@pytest.mark.parametrize("by", WAYS)
def test_equal_candidates_share_their_rank(by: str) -> None:
    twice = torch.cat([PICTURES[:5], PICTURES[:1]])
    found = identify(twice, twice, by)
    assert found.ranks.tolist() == [1.5, 1, 1, 1, 1, 1.5]
    assert found.top1 == pytest.approx(4 / 6)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("chunk", [7, 39])
def test_ranks_do_not_depend_on_the_chunk(by: str, chunk: int) -> None:
    reconstructed = noisy(PICTURES, 0.8)
    whole = identify(reconstructed, PICTURES, by, others=PICTURES.flip(-1))
    parts = identify(reconstructed, PICTURES, by, others=PICTURES.flip(-1), chunk=chunk)
    assert torch.equal(whole.ranks, parts.ranks)


@pytest.mark.parametrize("by", WAYS)
def test_others_are_candidates_too(by: str) -> None:
    found = identify(PICTURES[:1], PICTURES[:1], by, others=PICTURES[1:].double())
    assert (found.ranks.tolist(), found.candidates) == ([1.0], 40)
    # A reconstruction of something else: its true original is among the others and nearer.
    assert identify(PICTURES[1:2], PICTURES[:1], by, others=PICTURES[1:]).ranks.item() > 1


def test_bad_input() -> None:
    with pytest.raises(DataError, match="1 candidate, expected 2 or more to rank; pass others"):
        identify(PICTURES[:1], PICTURES[:1])
    with pytest.raises(DataError, match=r"others: images of shape \[1, 32, 32\], expected \[3, 32, 32\]"):
        identify(PICTURES, PICTURES, others=PICTURES[:, :1])
    with pytest.raises(DataError, match="others: NaN or infinity"):
        identify(PICTURES, PICTURES, others=PICTURES * torch.nan)
    with pytest.raises(SettingError, match="by = 'eye': expected one of 'pixels', 'lpips'"):
        identify(PICTURES, PICTURES, "eye")
    with pytest.raises(SettingError, match="chunk = 0: expected an integer ≥ 1"):
        identify(PICTURES, PICTURES, chunk=0)
