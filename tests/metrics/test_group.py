"""The verdict for a group: shares, and what chance explains."""

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
from refiner.metrics.blind import guesses
from refiner.metrics.group import _most_by_chance

SEEN, NEAR, SAFE = judge(20.0, 0.6), judge(14.5, 0.1), judge(10.0, 0.1)
NAMED = judge(10.0, 0.1, rank=1, candidates=1000)
UNKNOWN = judge(10.0, 0.1, rank=500, candidates=1000)


def many(**counts: int) -> list[Verdict]:
    kinds = {"seen": SEEN, "near": NEAR, "safe": SAFE, "named": NAMED, "unknown": UNKNOWN}
    return [kinds[kind] for kind, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("group", "level"),
    [
        (many(safe=100), "protected"),
        (many(seen=5, safe=95), "exposed"),
        (many(seen=4, safe=96), "borderline"),
        (many(seen=1, safe=999), "borderline"),
        (many(near=19, safe=81), "protected"),
        (many(near=20, safe=80), "borderline"),
        (many(near=100), "borderline"),
        (many(seen=1), "exposed"),
        # By chance 1 % of blind images are named: 18 of 1,000 and 4 of 100 are within it, one more is not.
        (many(named=18, unknown=982), "protected"),
        (many(named=19, unknown=981), "borderline"),
        (many(named=50, unknown=950), "exposed"),
        (many(named=4, unknown=96), "protected"),
        (many(named=5, unknown=95), "exposed"),
        (many(named=1, unknown=9), "protected"),
        (many(named=1), "exposed"),
        # Who is seen is never chance.
        (many(seen=1, named=18, unknown=981), "borderline"),
        (many(seen=50, named=18, unknown=932), "exposed"),
    ],
)
def test_the_rule(group: list[Verdict], level: str) -> None:
    assert judge_group(group).level == level


def test_the_counts() -> None:
    found = judge_group(many(seen=2, near=3, named=4, unknown=191))
    assert (found.exposed, found.borderline, found.protected, found.by_chance) == (6, 3, 191, 4)
    assert found.share == pytest.approx(0.03)
    assert found.reason == "6 of 200 exposed (3 %), 3 borderline; chance explains 4 of the exposed"


def test_other_thresholds() -> None:
    assert judge_group(many(seen=2, safe=98), Thresholds(exposed_share=0.02)).level == "exposed"
    assert judge_group(many(near=2, safe=98), Thresholds(borderline_share=0.02)).level == "borderline"


@pytest.mark.parametrize("count", [1, 2, 5, 10, 50, 100, 1000, 20_000])
@pytest.mark.parametrize("chance", [0.001, 0.01, 0.05, 0.5])
def test_chance_is_binomial(count: int, chance: float) -> None:
    limit = _most_by_chance(count, chance)
    assert binom.sf(limit, count, chance) <= 0.01 + 1e-9
    assert limit == 0 or binom.sf(limit - 1, count, chance) > 0.01


def test_no_chance_without_candidates_and_nothing_but_chance() -> None:
    assert _most_by_chance(0, 0.01) == 0
    assert _most_by_chance(7, 1.0) == 7


def test_blind_guesses_are_no_leak_and_copies_are() -> None:
    """What someone who saw no gradient hands in must not pass for an attack, nor a copy for protection."""
    original, public = load_sample().images.split(100)
    blind = {name: blind_guess(original, public, name).best for name in ("psnr", "ssim")}

    def judged(reconstructed: torch.Tensor, **known: torch.Tensor) -> str:
        found = judge_each(
            psnr(reconstructed, original),
            ssim(reconstructed, original),
            identifications=[identify(reconstructed, original)],
            **known,
        )
        return judge_group(found).level

    for guess in guesses(original, public).values():
        assert judged(guess, blind_psnr=blind["psnr"], blind_ssim=blind["ssim"]) == "protected"
        # The paper's thresholds alone call each of them a leak.
        assert judged(guess) == "exposed"
    assert judged(original, blind_psnr=blind["psnr"], blind_ssim=blind["ssim"]) == "exposed"


def test_no_victims_no_verdict() -> None:
    with pytest.raises(DataError, match="verdicts: none, expected one or more victims"):
        judge_group([])
