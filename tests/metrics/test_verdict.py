"""The verdict for one image: visible, identifiable or neither, beside blind guesses and chance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import (
    Identification,
    Thresholds,
    blind_guess,
    judge,
    judge_each,
    lpips,
    psnr,
    ssim,
)
from refiner.metrics.distortions import colour_jitter, flip, mean_colour, noise, shift, uniform_noise
from refiner.metrics.verdict import LEVELS

IMAGES = 50


@pytest.mark.parametrize(
    ("psnr", "ssim", "level"),
    [
        (15.0, 0.4, "visible"),
        (40.0, 1.0, "visible"),
        (5.0, 0.5, "visible"),
        (14.99, 0.4, "neither"),
        # A blur of the right colours has no structure, whatever its PSNR.
        (15.0, 0.39, "neither"),
        (25.0, 0.2, "neither"),
        (5.0, 0.49, "neither"),
        (5.0, -0.5, "neither"),
    ],
)
def test_levels_by_psnr_and_ssim(psnr: float, ssim: float, level: str) -> None:
    assert judge(psnr, ssim).level == level


def test_lpips_counts_only_beyond_the_blind_guess() -> None:
    assert judge(5.0, 0.1, lpips=0.05, blind_lpips=0.4).level == "visible"
    assert judge(5.0, 0.1, lpips=0.051, blind_lpips=0.4).level == "neither"
    # Where the blind guess scores about as well, a low LPIPS shows nothing.
    assert judge(5.0, 0.1, lpips=0.04, blind_lpips=0.08).level == "neither"
    alone = judge(5.0, 0.1, lpips=0.01)
    assert alone.level == "neither" and alone.reasons[2].endswith("without a blind guess to compare it with")


@pytest.mark.parametrize(
    ("rank", "candidates", "level"),
    [
        (1, 2, None),
        (1, 99, None),
        (1, 100, "identifiable"),
        (2, 100, "neither"),
        # Two candidates that are equally similar single nothing out.
        (1.5, 1000, "neither"),
        (1, 1000, "identifiable"),
        (10, 1000, "neither"),
        (500.5, 1000, "neither"),
    ],
)
def test_levels_by_identification(rank: float, candidates: int, level: str | None) -> None:
    verdict = judge(5.0, 0.0, rank=rank, candidates=candidates)
    assert ("identification" in verdict.criteria) == (level is not None) == (verdict.chance is not None)
    assert verdict.level == (level or "neither")
    reason = f"the most similar of {candidates}" if rank == 1 else f"rank {rank:g} of {candidates}"
    ending = f", by chance {100 / candidates:.2g} %" if rank == 1 else ""
    assert verdict.reasons[-1] == reason + (", too few candidates to tell" if level is None else ending)


def test_the_best_of_two_ranks_is_corrected() -> None:
    assert "identification" not in judge(5.0, 0.0, rank=1, candidates=199, attempts=2).criteria
    verdict = judge(5.0, 0.0, rank=1, candidates=200, attempts=2)
    assert verdict.level == "identifiable" and verdict.chance == pytest.approx(0.01)


def test_a_visible_image_may_also_be_identified() -> None:
    verdict = judge(20.0, 0.6, rank=1, candidates=1000)
    assert verdict.level == verdict.measured == "visible" and verdict.criteria["identification"]


def test_scores_near_the_blind_guess_do_not_count() -> None:
    """At least 1 dB or 0.05 more than the image's own blind guess, whatever the threshold."""
    assert judge(17.0, 0.45, blind_psnr=16.01).level == "neither"
    assert judge(17.0, 0.45, blind_psnr=16.0).level == "visible"
    assert judge(5.0, 0.6, blind_ssim=0.56).level == "neither"
    assert judge(5.0, 0.6, blind_ssim=0.5).level == "visible"
    # The blind guess for one score has no effect on the others.
    assert judge(16.0, 0.6, blind_psnr=17.0, blind_ssim=0.1).level == "visible"
    assert judge(16.0, 0.45, blind_psnr=17.0, rank=1, candidates=1000).level == "identifiable"
    assert judge(16.0, 0.45, blind_psnr=17.0).reasons[0].endswith("no better than a blind guess (17.0 dB)")


@given(
    st.floats(0, 100),
    st.floats(-1, 1),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(1, 500)),
    st.floats(0, 5),
)
def test_a_closer_image_is_never_safer(
    psnr: float, ssim: float, lpips: float, rank: int | None, more: float
) -> None:
    identified = {} if rank is None else {"rank": rank, "candidates": 500}
    blind = {"blind_psnr": 14.0, "blind_ssim": 0.1, "blind_lpips": 0.4}
    verdict = judge(psnr, ssim, lpips=lpips, **identified, **blind)
    assert verdict.level == verdict.measured
    assert len(verdict.reasons) == len(verdict.criteria)
    closer = judge(psnr + more, min(1.0, ssim + more), lpips=max(0.0, lpips - more), **identified, **blind)
    assert LEVELS.index(closer.level) <= LEVELS.index(verdict.level)


def test_other_thresholds_are_applied() -> None:
    other = Thresholds(psnr=12.0, ssim=0.3, structure=0.1, psnr_margin=0.0, identified=0.002)
    assert judge(12.0, 0.1, blind_psnr=12.0, thresholds=other).level == "visible"
    assert judge(5.0, 0.3, thresholds=other).level == "visible"
    assert judge(5.0, 0.0, rank=1, candidates=499, thresholds=other).level == "neither"
    assert judge(5.0, 0.0, rank=1, candidates=500, thresholds=other).level == "identifiable"


def test_judge_each_judges_every_image() -> None:
    psnr, ssim = torch.tensor([20.0, 10.0, 14.5, 16.0]), torch.full((4,), 0.42)
    distance = torch.tensor([0.2, 0.3, 0.01, 0.2])
    pixels = Identification("pixels", torch.tensor([500.0, 1.0, 400.0, 90.0]), 1000)
    deep = Identification("lpips", torch.tensor([9.0, 300.0, 600.0, 80.0]), 1000)
    blind = torch.tensor([14.0, 14.0, 14.0, 17.0])
    verdict = judge_each(
        psnr,
        ssim,
        lpips=distance,
        identifications=[pixels, deep],
        blind_psnr=blind,
        blind_ssim=ssim,
        blind_lpips=torch.full((4,), 0.5),
    )
    ranks = (9.0, 1.0, 400.0, 80.0)
    columns = (psnr.tolist(), ssim.tolist(), distance.tolist(), ranks, blind.tolist())
    expected = [
        judge(
            p,
            s,
            lpips=d,
            rank=r,
            candidates=1000,
            attempts=2,
            blind_psnr=b,
            blind_ssim=s,
            blind_lpips=0.5,
        )
        for p, s, d, r, b in zip(*columns, strict=True)
    ]
    assert verdict == expected
    assert [v.level for v in verdict] == ["visible", "identifiable", "visible", "neither"]
    assert [v.level for v in judge_each(psnr, ssim)] == ["visible", "neither", "neither", "visible"]


def thumbnail(images: Tensor) -> Tensor:
    small = torch.nn.functional.adaptive_avg_pool2d(images, 4)
    return torch.nn.functional.interpolate(small, size=32, mode="bilinear")


@pytest.mark.parametrize(
    ("distort", "lowest", "highest"),
    [
        (lambda images: images, 1.0, 1.0),
        (shift, 0.99, 1.0),
        (noise, 0.97, 1.0),
        (colour_jitter, 0.95, 1.0),
        # A mirrored image is recognised by LPIPS only.
        (flip, 0.5, 1.0),
        # A person sees half of these.
        (lambda images: noise(images, 0.15), 0.6, 0.95),
        # Colours in the right places, of which PSNR alone would call 85 % visible.
        (thumbnail, 0.0, 0.25),
        (mean_colour, 0.0, 0.0),
        (uniform_noise, 0.0, 0.0),
        (lambda images: noise(images, 0.5), 0.0, 0.0),
        (lambda images: images.roll(1, 0), 0.0, 0.0),
    ],
    ids=[
        *("copy", "shift", "noise 0.065", "colour jitter", "flip", "noise 0.15", "thumbnail 4×4"),
        *("own mean colour", "uniform noise", "noise 0.5", "another image"),
    ],
)
def test_what_the_rule_calls_visible(
    distort: object, lowest: float, highest: float, blind_scores: dict[str, Tensor]
) -> None:
    """Near-copies of the bundled images are visible; colours, noise and other images are not."""
    images = load_sample().images[:IMAGES]
    changed = distort(images)  # type: ignore[operator]
    verdicts = judge_each(
        psnr(changed, images),
        ssim(changed, images),
        lpips=lpips(changed, images),
        **{f"blind_{name}": scores for name, scores in blind_scores.items()},
    )
    share = sum(verdict.level == "visible" for verdict in verdicts) / len(verdicts)
    assert lowest <= share <= highest


@pytest.fixture(scope="module")
def blind_scores() -> dict[str, Tensor]:
    images = load_sample().images[:IMAGES]
    return {name: blind_guess(images, images, name).best for name in ("psnr", "ssim", "lpips")}


def test_invalid_input_raises() -> None:
    with pytest.raises(DataError, match="PSNR = nan: expected a finite number"):
        judge(float("nan"), 0.1)
    with pytest.raises(DataError, match="SSIM = inf: expected a finite number"):
        judge(1.0, float("inf"))
    with pytest.raises(DataError, match="LPIPS = nan: expected a finite number"):
        judge(1.0, 0.1, lpips=float("nan"))
    with pytest.raises(DataError, match="blind PSNR = nan: expected a finite number"):
        judge(1.0, 0.1, blind_psnr=float("nan"))
    with pytest.raises(DataError, match="rank = 1, candidates = None: expected both or neither"):
        judge(1.0, 0.1, rank=1)
    with pytest.raises(SettingError, match=r"rank = 0: expected a number in \[1, 100\]"):
        judge(1.0, 0.1, rank=0, candidates=100)
    with pytest.raises(SettingError, match="candidates = 1: expected an integer ≥ 2"):
        judge(1.0, 0.1, rank=1, candidates=1)
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(DataError, match=r"ssim: shape \[2\], expected \[N\] like psnr \[1\]"):
        judge_each(one, two)
    with pytest.raises(DataError, match=r"ranks by pixels: shape \[2\]"):
        judge_each(one, one, identifications=[Identification("pixels", two, 5)])
    with pytest.raises(DataError, match="expected the same candidates in each"):
        judge_each(one, one, identifications=[Identification("pixels", one, n) for n in (5, 6)])
