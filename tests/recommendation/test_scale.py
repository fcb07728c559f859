"""What a budget allows: searches that fit, and a one-line error where none does."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from refiner.audit import load_victims
from refiner.core import Task
from refiner.errors import DataError
from refiner.models import MLP, LeNet
from refiner.recommendation import CANDIDATES, Target
from refiner.recommendation.candidates import KEPT_LONGEST
from refiner.recommendation.cost import AttackCost, measure_costs
from refiner.recommendation.run_recommendation import make_plan
from refiner.recommendation.scale import Scale, fit_scale, scaled_down, spare_candidates

FULL = Scale(CANDIDATES, ("analytic", "linear", "inverting"), victims=50, public=3000)
# As measured for LeNet on two busy cores; analytic does not apply to it.
CPU = {
    "linear": AttackCost(audit=7.0, uploads=dict.fromkeys(("none", *CANDIDATES), 0.012)),
    "inverting": AttackCost(iteration=0.17, audit=2.0, tuning_runs=15.0),
}


def costs(iteration: float, audit: float, upload: float) -> dict[str, AttackCost]:
    return {
        "linear": AttackCost(0.0, audit, dict.fromkeys(("none", *CANDIDATES), upload)),
        "inverting": AttackCost(iteration, audit, {}, 15.0),
    }


@given(st.floats(1, 1e5), st.floats(1e-6, 1), st.floats(0, 10), st.floats(1e-6, 0.1))
def test_a_search_fits_or_the_least_budget_is_named(
    budget: float, iteration: float, audit: float, upload: float
) -> None:
    machine = costs(iteration, audit, upload)
    try:
        scale = fit_scale(FULL, budget, machine)
    except DataError as error:
        text = str(error)
        offer = re.search(r"at least (\d+)(s|min), as the smallest search takes about", text)
        assert offer is not None and len(text.splitlines()) == 1
        enough = float(offer[1]) * (60 if offer[2] == "min" else 1)
        assert enough > budget
        scale, budget = fit_scale(FULL, enough, machine), enough
    spare = spare_candidates(scale, budget, machine) * scale.candidate_seconds(machine)
    assert scale.seconds(machine) + spare <= budget * (1 + 1e-9)
    assert scale == fit_scale(FULL, budget, machine)
    assert "refiner" in scale.candidates and len(scale.candidates) >= 2
    assert set(scale.attacks) & set(machine)
    rungs = scale.plan_rungs
    assert rungs[0].candidates == len(scale.candidates)
    for earlier, later in pairwise(rungs):
        assert later.candidates <= earlier.candidates
        assert later.victims >= earlier.victims and later.iterations >= earlier.iterations


def test_two_minutes_on_a_cpu() -> None:
    scale = fit_scale(FULL, 120, CPU)
    assert scale.seconds(CPU) <= 120
    assert scale.attacks == ("linear",)
    texts = scaled_down(FULL, scale, CPU)
    assert texts[0] == "inverting left out as the slowest"
    assert any(text.startswith(f"{len(scale.candidates)} of {len(CANDIDATES)} defences (") for text in texts)


def test_only_what_helps_is_scaled_down() -> None:
    # Where only learning is slow, clients and iterations stay.
    learning = costs(1e-6, 0.0, 0.01)
    scale = fit_scale(FULL, 100, learning)
    assert scale.victims == 50 and scale.attacks == FULL.attacks and scale.public < 3000
    unlimited = fit_scale(FULL, 1e9, learning)
    assert unlimited == FULL and not scaled_down(FULL, unlimited, learning)


def test_more_budget_measures_no_less() -> None:
    scales = [fit_scale(FULL, budget, CPU) for budget in (60, 600, 6000, 60_000)]
    sizes = [(len(scale.attacks), len(scale.candidates)) for scale in scales]
    assert sizes == sorted(sizes) and sizes[0] != sizes[-1]


def test_what_was_named_is_kept() -> None:
    with pytest.raises(DataError, match=f"{len(CANDIDATES)} defences against linear, inverting"):
        fit_scale(FULL, 120, CPU, keep_candidates=True, keep_attacks=True)
    assert fit_scale(FULL, 360, CPU, keep_candidates=True).candidates == CANDIDATES


def test_what_is_kept_longest_are_candidates() -> None:
    assert set(KEPT_LONGEST) <= set(CANDIDATES) and KEPT_LONGEST[0] == "refiner"


SETTINGS: dict[str, Any] = {"batch": 8, "target": Target(), "training_rounds": 0, "lr": 0.1, "seed": 0}
NAMED = ("pruning:rate=0.99", "gq:bits=8")


@pytest.mark.processes
def test_a_tiny_budget_is_one_line() -> None:
    images = load_victims(None, victims=2, seed=0, public_images=120)
    task = Task(LeNet(), example=images.x[0])
    with pytest.raises(
        DataError, match=r"budget = 0 s: expected at least \d+(s|min), as .*linear\)"
    ) as error:
        make_plan(task, images, budget=1e-3, defenses=NAMED, attacks=("linear",), **SETTINGS)
    assert len(str(error.value).splitlines()) == 1


def test_a_stopped_search_keeps_its_plan() -> None:
    images = load_victims(None, victims=2, seed=0)
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), example=images.x[0])
    plan = make_plan(task, images, budget=600, defenses=NAMED, attacks=("analytic",), **SETTINGS)
    assert 0 < plan.seconds <= plan.budget == 600 and plan.candidates == NAMED and not plan.scaled_down
    same = make_plan(
        task, images, budget=600, defenses=NAMED, attacks=("analytic",), earlier=plan, **SETTINGS
    )
    assert same is plan
    assert not plan.is_for(asked=(*NAMED, "linear"))


def test_iterations_in_the_name_of_an_attack_cost_the_same_in_every_rung() -> None:
    stopped = AttackCost(iteration=0.17, iterations=6)
    scales = [Scale(CANDIDATES, ("idlg:iterations=6",), 50, 0, iterations=most) for most in (100, 2000)]
    seconds = {scale.seconds({"idlg:iterations=6": stopped}) for scale in scales}
    rungs = scales[0].plan_rungs
    assert seconds == {sum((rung.candidates + 1) * rung.victims * 6 * 0.17 for rung in rungs)}
    assert not scaled_down(scales[1], scales[0], {"idlg:iterations=6": stopped})


@pytest.mark.processes
def test_iterations_in_the_name_are_timed() -> None:
    images = load_victims(None, victims=8)
    task = Task(MLP(hidden=8), example=images.x[0])
    costs = measure_costs(task, images, ["gq:bits=8"], ("inverting", "inverting:iterations=50"), 0)
    free, fixed = costs.values()
    assert (free.iterations, fixed.iterations) == (None, 50)
    assert free.iteration / 5 < fixed.iteration < free.iteration * 5


@pytest.mark.processes
def test_a_chain_is_charged_for_the_public_images_that_it_attacks() -> None:
    """The iterations on them are no part of what an upload costs, which grows with all public images."""
    images = load_victims(None, victims=8, public_images=100)
    task = Task(MLP(hidden=8), example=images.x[0])
    names = ("inverting", "inverting+denoiser:images=64")
    alone, chain = measure_costs(task, images, ["gq:bits=8"], names, 0).values()
    assert (alone.public_runs, chain.public_runs) == (0, 64) and not alone.uploads
    assert alone.iteration > 0 and chain.iteration > 0 and set(chain.uploads) == {"none", "gq:bits=8"}
    # 64 runs of 1,000 iterations take far longer than 100 uploads.
    assert 100 * chain.uploads["none"] < 64 * 1000 * chain.iteration
