"""Plans: what a budget allows, and files."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import RefinerError
from refiner.recommendation import Rung, SearchPlan, Target
from refiner.recommendation.search_plan import Work, choose_rungs

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
)


@given(st.floats(1, 1e5), st.floats(1e-6, 1), st.integers(1, 20), st.integers(2, 64))
def test_rungs_narrow_and_deepen(budget: float, iteration: float, candidates: int, victims: int) -> None:
    rungs, seconds = choose_rungs(
        budget, Work(iteration, 0.1), candidates=candidates, victims=victims, tuning_runs=0
    )
    assert rungs[0].candidates == candidates
    for earlier, later in pairwise(rungs):
        assert later.candidates <= earlier.candidates
        assert later.victims >= earlier.victims and later.iterations >= earlier.iterations
    assert all(rung.victims <= victims for rung in rungs)
    least = choose_rungs(1e-9, Work(iteration, 0.1), candidates=candidates, victims=victims, tuning_runs=0)
    assert seconds <= budget or (rungs, seconds) == least


def test_more_budget_measures_no_less() -> None:
    chosen = [
        choose_rungs(budget, Work(1e-3, 1), candidates=10, victims=64, tuning_runs=5)[0][-1]
        for budget in (60, 600, 6000)
    ]
    assert [rung.victims * rung.iterations for rung in chosen] == sorted(
        rung.victims * rung.iterations for rung in chosen
    )
    assert chosen[0] != chosen[2]


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    assert SearchPlan.load(PLAN.save(tmp_path / "plan.json")) == PLAN


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
