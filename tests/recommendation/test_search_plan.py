"""Plans and their files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from refiner.errors import RefinerError
from refiner.recommendation import Rung, SearchPlan, Target

PLAN = SearchPlan(
    ("pruning", "gq:bits=2"),
    ("linear", "inverting"),
    (Rung(4, 30, 2), Rung(8, 100, 2)),
    Target(max_exposed=0.05),
    batch=32,
    tuning_victims=4,
    training_rounds=0,
    lr=0.01,
    seed=3,
    budget=60.0,
    seconds=20.0,
    asked=("pruning", "gq:bits=2", "refiner", "linear", "inverting"),
    public_images=300,
    spare=1,
    scaled_down=("2 of 3 defences",),
)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    assert SearchPlan.load(PLAN.save(tmp_path / "plan.json")) == PLAN


def test_a_plan_that_was_not_scaled_down_needs_no_more_fields(tmp_path: Path) -> None:
    path = PLAN.save(tmp_path / "plan.json")
    record = json.loads(path.read_text())
    for name in ("asked", "public_images", "spare", "scaled_down"):
        del record[name]
    path.write_text(json.dumps(record))
    assert SearchPlan.load(path).public_images is None


def test_the_text_names_what_was_scaled_down() -> None:
    assert "8 clients with 100 iterations, tuned on 4 others" in PLAN.text
    assert "iterations" not in replace(PLAN, attacks=("linear",)).text
    assert PLAN.text.endswith("about 20 s; scaled down to the budget: 2 of 3 defences")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"candidates": ["prune"]}, "did you mean 'pruning'"),
        ({"rungs": []}, "at least one rung"),
        ({"rungs": [{"victims": 0, "iterations": 1, "candidates": 1}]}, "victims = 0"),
        ({"format": "other"}, "its format is not"),
        ({"surprise": 1}, "its fields are not"),
        ({"target": 3}, "not a search plan"),
    ],
)
def test_a_wrong_plan_is_one_line(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = PLAN.save(tmp_path / "plan.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RefinerError, match=message) as error:
        SearchPlan.load(path)
    assert len(str(error.value).splitlines()) == 1
