"""The verdict for a group: shares of images, and what chance explains."""

import pytest
import torch

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics import (
    Share,
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
from refiner.metrics.group_verdict import most_by_chance

# Chance identifies 1 % with 100 candidates.
VISIBLE, UNTESTED = judge(20.0, 0.6), judge(10.0, 0.1)
IDENTIFIED = judge(10.0, 0.1, rank=1, candidates=100)
NOT_IDENTIFIED = judge(10.0, 0.1, rank=50, candidates=100)


def group_of(**counts: int) -> list[Verdict]:
    kinds = {
        "visible": VISIBLE,
        "untested": UNTESTED,
        "identified": IDENTIFIED,
        "unidentified": NOT_IDENTIFIED,
    }
    return [kinds[kind] for kind, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("group", "level"),
    [
        (group_of(untested=100), "neither"),
        (group_of(visible=5, untested=95), "visible"),
        # Below 5 % the group is not visible, but never "neither" where anything is.
        (group_of(visible=4, untested=96), "identifiable"),
        (group_of(visible=1, unidentified=999), "identifiable"),
        (group_of(visible=1), "visible"),
        # By chance 1 % are identified: 18 of 1,000 and 4 of 100 are within it, one more is not.
        (group_of(identified=18, unidentified=982), "neither"),
        (group_of(identified=19, unidentified=981), "identifiable"),
        (group_of(identified=4, unidentified=96), "neither"),
        (group_of(identified=5, unidentified=95), "identifiable"),
        (group_of(identified=1, unidentified=9), "neither"),
        (group_of(identified=1), "identifiable"),
        (group_of(identified=100), "identifiable"),
        # Visible images are never explained by chance.
        (group_of(visible=1, identified=18, unidentified=981), "identifiable"),
        (group_of(visible=50, identified=18, unidentified=932), "visible"),
    ],
)
def test_the_level_of_a_group(group: list[Verdict], level: str) -> None:
    assert judge_group(group).level == level


def test_more_candidates_leave_less_to_chance() -> None:
    """Of 3,000 candidates chance picks the right one 30 times less often than of 100."""
    found, missed = (judge(10.0, 0.1, rank=rank, candidates=3000) for rank in (1, 7))
    assert judge_group([*[found] * 2, *[missed] * 98]).level == "identifiable"
    assert judge_group(group_of(identified=2, unidentified=98)).level == "neither"


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (group_of(visible=20), "20 of 20 visible"),
        (group_of(unidentified=20), "none of 20 visible, none identifiable"),
        (group_of(untested=20), "none of 20 visible, identification not tested"),
        (group_of(visible=5, unidentified=15), "5 of 20 visible (25 %), no other identifiable"),
        (group_of(identified=3, unidentified=17), "none of 20 visible, 3 identifiable (15 %)"),
        (
            group_of(visible=2, identified=1, unidentified=197),
            "2 of 200 visible (1 %), 1 other identifiable (0.5 %), no more than chance may give",
        ),
    ],
)
def test_the_reason_is_one_sentence(group: list[Verdict], reason: str) -> None:
    assert judge_group(group).reason == reason


def test_shares_count_visible_images_as_identifiable() -> None:
    verdict = judge_group(group_of(visible=2, identified=4, unidentified=194))
    assert (verdict.visible, verdict.identifiable) == (Share.of(2, 200), Share.of(6, 200))
    assert verdict.by_chance == 4
    batches = judge_group(group_of(visible=2, identified=4, unidentified=194), clients=50)
    assert batches.visible == Share.of(2, 200, clients=50) and batches.visible.high > verdict.visible.high


def test_a_withheld_verdict_is_judged_by_what_was_measured() -> None:
    withheld = [Verdict("no verdict", v.criteria, v.reasons, v.chance) for v in group_of(visible=3)]
    assert judge_group(withheld) == judge_group(group_of(visible=3))


def test_other_thresholds_are_applied() -> None:
    assert judge_group(group_of(visible=2, untested=98), Thresholds(visible_share=0.02)).level == "visible"


@pytest.mark.parametrize("count", [1, 2, 5, 10, 50, 100, 1000, 20_000])
@pytest.mark.parametrize("chance", [0.001, 0.01, 0.05, 0.5])
def test_the_limit_of_chance_is_binomial(count: int, chance: float) -> None:
    from scipy.stats import binom

    limit = most_by_chance(count, chance)
    assert binom.sf(limit, count, chance) <= 0.01 + 1e-9
    assert limit == 0 or binom.sf(limit - 1, count, chance) > 0.01


def test_the_limit_of_chance_at_its_ends() -> None:
    assert most_by_chance(0, 0.01) == 0
    assert most_by_chance(7, 1.0) == 7


def test_blind_guesses_are_neither_and_copies_visible() -> None:
    original, public = load_sample().images.split([20, 180])
    blind = {name: blind_guess(original, public, name).best for name in ("psnr", "ssim")}

    def level(reconstructed: torch.Tensor) -> str:
        verdicts = judge_each(
            psnr(reconstructed, original),
            ssim(reconstructed, original),
            identifications=[identify(reconstructed, original, others=public)],
            blind_psnr=blind["psnr"],
            blind_ssim=blind["ssim"],
        )
        return judge_group(verdicts).level

    for guess in guess_images(original, public).values():
        assert level(guess) == "neither"
    assert level(original) == "visible"
    # Noise that hides every image from the eye, but not from a list of candidates.
    noise = torch.randn(original.shape, generator=torch.Generator().manual_seed(0))
    assert level((original + noise).clamp(0, 1)) == "identifiable"


def test_a_group_without_images_raises() -> None:
    with pytest.raises(DataError, match="verdicts: none, expected one or more images"):
        judge_group([])
