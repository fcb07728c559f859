"""The benchmarks of inference: clients that chose no setting, and the points of the comparison's figure."""

from pathlib import Path
from statistics import stdev

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks import each other by name, as they do when run as scripts."""
    monkeypatch.syspath_prepend(FOLDER)


def test_candidates_are_none_of_those_on_which_settings_were_chosen() -> None:
    from evaluation_splits import unseen_candidates
    from refiner.inference import pair_by_label

    labels = torch.arange(50_000) % 10
    victims = torch.arange(40_000, 50_000)
    seen = torch.cat(pair_by_label(victims, labels[victims], 64, 16, seed=0)[:2]).flatten()
    candidates = unseen_candidates(labels)
    assert int(candidates.min()) >= 45_000 and not bool(torch.isin(candidates, seen).any())
    assert len(candidates) == 5_000 - int((seen >= 45_000).sum())


def test_a_point_is_a_mean_over_seeds_with_its_own_training() -> None:
    from inference_plot import points

    kinds = {"trained on": "lfw-identity", "model": "lenet", "batch": 8, "rounds": 5, "lr": 0.2}
    trainings = [
        {**kinds, "defense": defense, "seed": seed, "accuracy": accuracy}
        for defense, seed, accuracy in (("none", 1, 0.5), ("gq", 1, 0.4), ("none", 2, 0.4), ("gq", 2, 0.4))
    ]
    attacks = [
        {"question": "gender", "model": "lenet", "state": state, "defense": defense, "attack": "a"}
        | {"AUC": auc, "AUC low": auc - 0.3, "AUC high": auc + 0.4}
        for defense, auc, state in (
            ("gq", 0.5, "initial"),
            ("gq", 0.51, "initial"),
            ("pruning", 0.5, "initial"),
            ("gq", 0.9, "after 1000 steps"),
        )
    ]
    # Pruning was not trained, and accuracy is not that of a model which has learned.
    (point,) = points(attacks, trainings)
    assert point["pmm"] == pytest.approx(90) and point["auc"] == pytest.approx(0.505)
    # Two seeds: from the lower end of one interval to the upper end of the other.
    assert point["below"] == pytest.approx(0.305) and point["above"] == pytest.approx(0.405)
    attacks.append(attacks[0] | {"AUC": 0.505, "AUC low": 0.205, "AUC high": 0.905})
    (three,) = points(attacks, trainings)
    assert three["below"] == pytest.approx(0.3 / 3**0.5) and three["above"] == pytest.approx(0.4 / 3**0.5)
    # Seeds that differ by more than their intervals say: Student's t with two degrees of freedom.
    attacks[1] |= {"AUC": 0.9}
    (apart,) = points(attacks, trainings)
    assert apart["above"] == pytest.approx(4.30 * stdev([0.5, 0.9, 0.505]) / 3**0.5)
    # Of two attacks the one that finds more on average.
    stronger = [
        attacks[0] | {"attack": "b", "AUC": auc, "AUC low": 0.6, "AUC high": 0.8} for auc in (0.6, 0.8)
    ]
    assert points([*attacks, *stronger], trainings)[0]["seeds"] == [0.6, 0.8]
    weaker = [row | {"AUC": 0.4} for row in stronger]
    assert points([*attacks, *weaker], trainings)[0]["seeds"] == apart["seeds"]


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path) -> None:
    from inference_comparison import Rows

    rows = Rows(tmp_path / "rows.jsonl")
    rows.add({"defense": "none", "seed": 1, "AUC": 0.9})
    again = Rows(tmp_path / "rows.jsonl")
    assert again.has({"defense": "none", "seed": 1}) and not again.has({"defense": "none", "seed": 2})
