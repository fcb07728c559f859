"""The verdict for a group: fractions of victims, and what chance explains."""

import pytest
import torch
from scipy.stats import binom

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics import (
    Thresholds,
    Verdict,
    blind_guess,
    identify,
    judge,
    judge_each,
    judge_group,
    psnr,
    ssim,
)
from refiner.metrics.blind_guesses import guess_images
from refiner.metrics.group_verdict import _most_by_chance

VISIBLE, BORDERLINE, PROTECTED = judge(20.0, 0.6), judge(14.5, 0.1), judge(10.0, 0.1)
IDENTIFIED = judge(10.0, 0.1, rank=1, candidates=1000)
NOT_IDENTIFIED = judge(10.0, 0.1, rank=500, candidates=1000)


def group_of(**counts: int) -> list[Verdict]:
    kinds = {
        "visible": VISIBLE,
        "borderline": BORDERLINE,
        "protected": PROTECTED,
        "identified": IDENTIFIED,
        "unidentified": NOT_IDENTIFIED,
    }
    return [kinds[kind] for kind, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("group", "level"),
    [
        (group_of(protected=100), "protected"),
        (group_of(visible=5, protected=95), "exposed"),
        (group_of(visible=4, protected=96), "borderline"),
        (group_of(visible=1, protected=999), "borderline"),
        (group_of(borderline=19, protected=81), "protected"),
        (group_of(borderline=20, protected=80), "borderline"),
        (group_of(borderline=100), "borderline"),
        (group_of(visible=1), "exposed"),
        # By chance 1 % are identified: 18 of 1,000 and 4 of 100 are within it, one more is not.
        (group_of(identified=18, unidentified=982), "protected"),
        (group_of(identified=19, unidentified=981), "borderline"),
        (group_of(identified=50, unidentified=950), "exposed"),
        (group_of(identified=4, unidentified=96), "protected"),
        (group_of(identified=5, unidentified=95), "exposed"),
        (group_of(identified=1, unidentified=9), "protected"),
        (group_of(identified=1), "exposed"),
        # Visible victims are never explained by chance.
        (group_of(visible=1, identified=18, unidentified=981), "borderline"),
        (group_of(visible=50, identified=18, unidentified=932), "exposed"),
    ],
)
def test_the_level_of_a_group(group: list[Verdict], level: str) -> None:
    assert judge_group(group).level == level


def test_the_counts_and_the_reason() -> None:
    verdict = judge_group(group_of(visible=2, borderline=3, identified=4, unidentified=191))
    assert (verdict.exposed, verdict.borderline, verdict.protected, verdict.by_chance) == (6, 3, 191, 4)
    assert verdict.share == pytest.approx(0.03)
    assert verdict.reason == "6 of 200 exposed (3 %), 3 borderline; chance explains 4 of the exposed"


def test_other_thresholds_are_applied() -> None:
    assert judge_group(group_of(visible=2, protected=98), Thresholds(exposed_share=0.02)).level == "exposed"
    assert (
        judge_group(group_of(borderline=2, protected=98), Thresholds(borderline_share=0.02)).level
        == "borderline"
    )


@pytest.mark.parametrize("count", [1, 2, 5, 10, 50, 100, 1000, 20_000])
@pytest.mark.parametrize("chance", [0.001, 0.01, 0.05, 0.5])
def test_the_limit_of_chance_is_binomial(count: int, chance: float) -> None:
    limit = _most_by_chance(count, chance)
    assert binom.sf(limit, count, chance) <= 0.01 + 1e-9
    assert limit == 0 or binom.sf(limit - 1, count, chance) > 0.01


def test_the_limit_of_chance_at_its_ends() -> None:
    assert _most_by_chance(0, 0.01) == 0
    assert _most_by_chance(7, 1.0) == 7


def test_blind_guesses_are_protected_and_copies_exposed() -> None:
    original, public = load_sample().images.split(100)
    blind = {name: blind_guess(original, public, name).best for name in ("psnr", "ssim")}

    def level(reconstructed: torch.Tensor, **blind_scores: torch.Tensor) -> str:
        verdicts = judge_each(
            psnr(reconstructed, original),
            ssim(reconstructed, original),
            identifications=[identify(reconstructed, original)],
            **blind_scores,
        )
        return judge_group(verdicts).level

    for guess in guess_images(original, public).values():
        assert level(guess, blind_psnr=blind["psnr"], blind_ssim=blind["ssim"]) == "protected"
        # By the paper's thresholds alone each of them is exposed.
        assert level(guess) == "exposed"
    assert level(original, blind_psnr=blind["psnr"], blind_ssim=blind["ssim"]) == "exposed"


def test_a_group_without_victims_raises() -> None:
    with pytest.raises(DataError, match="verdicts: none, expected one or more victims"):
        judge_group([])
