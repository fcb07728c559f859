"""The verdict for one victim: each criterion, the worst of them, chance and blind guesses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import DataError, SettingError
from refiner.metrics import Identification, Thresholds, judge, judge_each
from refiner.metrics.verdict import LEVELS


@pytest.mark.parametrize(
    ("psnr", "ssim", "level"),
    [
        (15.0, 0.0, "exposed"),
        (40.0, 1.0, "exposed"),
        (5.0, 0.5, "exposed"),
        (14.99, 0.0, "borderline"),
        (14.0, 0.0, "borderline"),
        (5.0, 0.45, "borderline"),
        (13.99, 0.44, "protected"),
        (5.0, -0.5, "protected"),
    ],
)
def test_levels_by_psnr_and_ssim(psnr: float, ssim: float, level: str) -> None:
    assert judge(psnr, ssim).level == level


@pytest.mark.parametrize(
    ("rank", "candidates", "level"),
    [
        (1, 2, None),
        (1, 19, None),
        (1, 20, "borderline"),
        (2, 20, "protected"),
        (1, 99, "borderline"),
        (1, 100, "exposed"),
        (2, 100, "borderline"),
        (5, 100, "borderline"),
        (6, 100, "protected"),
        (1, 1000, "exposed"),
        (10, 1000, "exposed"),
        (10.5, 1000, "borderline"),
        (50, 1000, "borderline"),
        (51, 1000, "protected"),
        (500.5, 1000, "protected"),
    ],
)
def test_levels_by_identification(rank: float, candidates: int, level: str | None) -> None:
    verdict = judge(5.0, 0.0, rank=rank, candidates=candidates)
    assert verdict.votes.get("identification") == level
    assert verdict.level == (level or "protected")
    ending = "too few candidates to tell" if level is None else f"by chance {100 * rank / candidates:.2g} %"
    assert verdict.reasons[-1] == f"rank {rank:g} of {candidates}, {ending}"


def test_the_best_of_two_ranks_is_corrected() -> None:
    assert judge(5.0, 0.0, rank=1, candidates=100, attempts=2).level == "borderline"
    assert judge(5.0, 0.0, rank=1, candidates=200, attempts=2).level == "exposed"
    assert "identification" not in judge(5.0, 0.0, rank=1, candidates=39, attempts=2).votes


def test_scores_below_the_blind_guess_are_ignored() -> None:
    assert judge(16.0, 0.1, blind_psnr=16.0).level == "protected"
    assert judge(16.0, 0.1, blind_psnr=15.9).level == "exposed"
    assert judge(14.5, 0.1, blind_psnr=14.6).level == "protected"
    assert judge(5.0, 0.6, blind_ssim=0.7).level == "protected"
    assert judge(5.0, 0.6, blind_ssim=0.5).level == "exposed"
    # The blind guess for one score has no effect on the others.
    assert judge(16.0, 0.6, blind_psnr=17.0, blind_ssim=0.1).level == "exposed"
    assert judge(16.0, 0.1, blind_psnr=17.0, rank=1, candidates=1000).level == "exposed"
    assert judge(16.0, 0.1, blind_psnr=17.0).reasons[0].endswith("no better than a blind guess (17.0 dB)")


@given(st.floats(0, 100), st.floats(-1, 1), st.one_of(st.none(), st.integers(1, 500)), st.floats(0, 5))
def test_the_worst_vote_counts_and_a_closer_image_is_never_safer(
    psnr: float, ssim: float, rank: int | None, more: float
) -> None:
    identified = {} if rank is None else {"rank": rank, "candidates": 500}
    verdict = judge(psnr, ssim, **identified)
    assert verdict.level == min(verdict.votes.values(), key=LEVELS.index)
    assert len(verdict.reasons) == len(verdict.votes)
    closer = judge(psnr + more, min(1.0, ssim + more), **identified)
    assert LEVELS.index(closer.level) <= LEVELS.index(verdict.level)


def test_other_thresholds_are_applied() -> None:
    strict = Thresholds(psnr=12.0, ssim=0.2, identified=0.002)
    assert judge(12.0, 0.0, thresholds=strict).level == "exposed"
    assert judge(5.0, 0.2, thresholds=strict).level == "exposed"
    assert judge(5.0, 0.0, rank=1, candidates=100, thresholds=strict).level == "borderline"


def test_judge_each_judges_every_victim() -> None:
    psnr, ssim = torch.tensor([20.0, 10.0, 14.5, 16.0]), torch.tensor([0.1, 0.1, 0.1, 0.1])
    pixels = Identification("pixels", torch.tensor([500.0, 1.0, 400.0, 90.0]), 1000)
    deep = Identification("lpips", torch.tensor([9.0, 300.0, 600.0, 80.0]), 1000)
    blind = torch.tensor([14.0, 14.0, 14.0, 17.0])
    verdict = judge_each(psnr, ssim, identifications=[pixels, deep], blind_psnr=blind, blind_ssim=ssim)
    ranks = (9.0, 1.0, 400.0, 80.0)
    expected = [
        judge(p, s, rank=r, candidates=1000, attempts=2, blind_psnr=b, blind_ssim=s)
        for p, s, r, b in zip(psnr.tolist(), ssim.tolist(), ranks, blind.tolist(), strict=True)
    ]
    assert verdict == expected
    assert [v.level for v in verdict] == ["exposed", "exposed", "borderline", "protected"]
    assert [v.level for v in judge_each(psnr, ssim)] == ["exposed", "protected", "borderline", "exposed"]


def test_invalid_input_raises() -> None:
    with pytest.raises(DataError, match="PSNR = nan: expected a finite number"):
        judge(float("nan"), 0.1)
    with pytest.raises(DataError, match="SSIM = inf: expected a finite number"):
        judge(1.0, float("inf"))
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
