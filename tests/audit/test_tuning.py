"""Tests of tuning an attack for each defence on other images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.conftest import QUICK

from refiner.attacks import GGL, IDLG, Attack, Observation, Reconstruction
from refiner.attacks.matching import checkpoint, gradient_matching
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.audit import AuditResult, Plan, Tuning, audit, audit_all
from refiner.audit.display_names import pair_names, settings_text, shared_settings
from refiner.audit.report import report_page
from refiner.audit.tune_attack import choose_trial
from refiner.audit.tuning import LEARNING_RATES, TOTAL_VARIATION_WEIGHTS
from refiner.core import Task
from refiner.data import Sample
from refiner.errors import RefinerError
from refiner.models import MLP
from refiner.report import render_page

ATTACK = replace(QUICK, iterations=12)


@pytest.fixture(scope="module")
def sample(sample: Sample) -> Sample:
    """The sample with 12×12 pixels: a trial of the grid is an attack."""
    return replace(sample, images=torch.nn.functional.avg_pool2d(sample.images[..., :24, :24], 2))


@pytest.fixture(scope="module")
def task(sample: Sample) -> Task:
    torch.manual_seed(0)
    return Task(MLP(input_shape=(3, 12, 12), hidden=16), example=sample.images[:1])


@pytest.fixture(scope="module")
def tuning(sample: Sample) -> Tuning:
    x, y = sample.images[10:12], sample.labels[10:12]
    return Tuning(x, y, total_variation=(1.0,), lr=(0.01,), iterations=())


@pytest.fixture(scope="module")
def tuned(task: Task, sample: Sample, tuning: Tuning) -> AuditResult:
    x, y, public = sample.images[:2], sample.labels[:2], sample.images[30:]
    return audit(task, x, y, defense="none", attack=ATTACK, tune=tuning, public=public)


def test_grid_contains_the_attacks_own_values() -> None:
    tuning = Tuning(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))
    grid = tuning.grid(replace(QUICK, iterations=24))
    assert len(grid) == 4 * 9 * 4
    assert grid[0] == {"iterations": 1, "total_variation": 1e-4, "lr": 0.003}
    assert [point["iterations"] for point in grid[::36]] == [1, 2, 7, 24]
    assert all(type(point["iterations"]) is int for point in grid)
    assert {point["total_variation"] for point in grid} == {1e-4, *TOTAL_VARIATION_WEIGHTS}
    assert {point["lr"] for point in grid} == set(LEARNING_RATES)
    rates = replace(tuning, iterations=()).grid(GGL(iterations=5))
    assert rates == tuple({"iterations": 5, "lr": lr} for lr in LEARNING_RATES)
    assert tuning.grid(IDLG())[-1] == {"iterations": 300, "lr": 1.0}
    # Shares of very few iterations are the same number, which is tried once.
    assert [point["iterations"] for point in tuning.grid(IDLG(iterations=2))[::5]] == [1, 2]


def test_best_settings_on_the_tuning_images_are_chosen(
    task: Task, sample: Sample, tuning: Tuning, tuned: AuditResult
) -> None:
    choice = tuned.tuned
    assert choice is not None and choice.images == 2 and len(choice.trials) == 4
    best = max(choice.trials, key=lambda trial: trial["psnr"])
    assert choice.settings_of(best) == choice.chosen and choice.criterion == "psnr"
    assert len({trial["psnr"] for trial in choice.trials}) == 4
    for trial in choice.trials:
        used, public = replace(ATTACK, **choice.settings_of(trial)), sample.images[30:]
        alone = audit(task, tuning.x, tuning.y, defense="none", attack=used, public=public)
        assert trial["psnr"] == pytest.approx(alone.means["psnr"].value, abs=0.05)
        ranks = [finding.rank_pixels for finding in alone.findings]
        assert trial["rank"] == pytest.approx(float(np.exp(np.mean(np.log(ranks)))))


def test_settings_are_chosen_by_rank_where_no_psnr_beats_the_blind_guess(task: Task, sample: Sample) -> None:
    """Behind strong noise a strong total variation gives one colour, and the better PSNR."""
    flat, sharp = 1e3, 1e-4
    tuning = Tuning(sample.images[10:26], sample.labels[10:26], (flat, sharp), (), ())
    attack, x, y = replace(ATTACK, total_variation=sharp, iterations=40), sample.images[:1], sample.labels[:1]
    settings: dict[str, Any] = {"attack": attack, "tune": tuning, "control": False}
    noisy = "dp-gaussian:magnitude=0.3,clip=none"
    by_rank, by_psnr = (
        audit(task, x, y, defense=noisy, public=sample.images[30:candidates], **settings).tuned
        for candidates in (200, 40)
    )
    assert by_rank is not None and by_psnr is not None
    assert (by_psnr.criterion, by_psnr.chosen["total_variation"]) == ("psnr", flat)
    assert (by_rank.criterion, by_rank.chosen["total_variation"]) == ("rank", sharp)
    assert all("rank" not in trial for trial in by_psnr.trials)


@given(
    st.lists(st.tuples(st.floats(0, 40), st.floats(1, 1000)), min_size=1, max_size=8),
    st.floats(0, 40),
    st.booleans(),
)
def test_chosen_trial_is_the_best_by_its_criterion(
    scores: list[tuple[float, float]], blind: float, ranked: bool
) -> None:
    trials = [{"psnr": psnr, **({"rank": rank} if ranked else {})} for psnr, rank in scores]
    number, criterion = choose_trial(trials, blind)
    best = max(trial["psnr"] for trial in trials)
    assert criterion == ("rank" if ranked and best <= blind else "psnr")
    if criterion == "psnr":
        assert trials[number]["psnr"] == best
    else:
        assert trials[number]["rank"] == min(trial["rank"] for trial in trials)


def test_victims_are_attacked_with_the_chosen_settings(
    task: Task, sample: Sample, tuning: Tuning, tuned: AuditResult
) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    assert tuned.tuned is not None
    plain = audit(task, x, y, defense="none", attack=replace(ATTACK, **tuned.tuned.chosen))
    np.testing.assert_array_equal(tuned.reconstruction, plain.reconstruction)
    assert plain.tuned is None and tuned.seconds.tuning > 0 == plain.seconds.tuning
    # The chosen settings may differ from the attack's own.
    slow = replace(ATTACK, lr=1e-6)
    untuned, retuned = (
        audit(task, x, y, defense="none", attack=slow, tune=tune)
        for tune in (None, replace(tuning, total_variation=(), lr=(0.1,)))
    )
    chosen = {"iterations": 12, "total_variation": 1e-4, "lr": 0.1}
    assert retuned.tuned is not None and retuned.tuned.chosen == chosen
    assert retuned.means["psnr"].value > untuned.means["psnr"].value + 1


def test_shorter_runs_are_tried_as_runs_of_their_own(task: Task, sample: Sample, tuning: Tuning) -> None:
    """A learning rate that is too large for long runs: the shortest run wins, and each is an attack alone."""
    x, y = sample.images[:2], sample.labels[:2]
    # At a weight of 100 the images become flatter with every step.
    attack = replace(ATTACK, total_variation=100.0, lr=0.02)
    shares = replace(tuning, total_variation=(), lr=(), iterations=(0.25, 0.5))
    result = audit(task, x, y, defense="none", attack=attack, tune=shares, metrics=())
    assert result.tuned is not None
    assert [trial["iterations"] for trial in result.tuned.trials] == [3, 6, 12]
    for trial in result.tuned.trials:
        alone = replace(attack, iterations=int(trial["iterations"]))
        expected = audit(task, tuning.x, tuning.y, defense="none", attack=alone, metrics=())
        assert trial["psnr"] == pytest.approx(expected.means["psnr"].value, abs=0.05)
    best = max(result.tuned.trials, key=lambda trial: trial["psnr"])
    assert result.tuned.chosen["iterations"] == best["iterations"]
    used = replace(attack, iterations=int(best["iterations"]))
    plain = audit(task, x, y, defense="none", attack=used, metrics=())
    np.testing.assert_array_equal(result.reconstruction, plain.reconstruction)


def test_attack_is_tuned_for_each_defence(task: Task, sample: Sample, tuning: Tuning) -> None:
    """The trials attack the uploads of the defence, not the raw gradients."""
    x, y = sample.images[:1], sample.labels[:1]
    defenses, attack = ("none", "gq:bits=1"), replace(ATTACK, iterations=4)
    one = replace(tuning, total_variation=(), lr=())
    results = [audit(task, x, y, defense=d, attack=attack, tune=one, metrics=()) for d in defenses]
    alone = [audit(task, tuning.x, tuning.y, defense=d, attack=attack, metrics=()) for d in defenses]
    scores = [result.tuned.trials[0]["psnr"] for result in results if result.tuned is not None]
    assert scores == pytest.approx([result.means["psnr"].value for result in alone], abs=0.02)
    assert abs(scores[0] - scores[1]) > 0.05


def test_tuning_result_is_saved_without_loss(tuned: AuditResult, tmp_path: Path) -> None:
    again = AuditResult.load(tuned.save(tmp_path / "a.json"))
    assert again.tuned == tuned.tuned and again.seconds == tuned.seconds
    assert again.settings == tuned.settings and again.to_json() == tuned.to_json()
    odd = replace(tuned, tuned=replace(tuned.tuned, trials=({"lr": 0.1, "psnr": float("inf")},)))  # type: ignore[type-var]
    assert AuditResult.from_json(odd.to_json()).tuned == odd.tuned
    settings = tuned.settings["tuning"]
    assert isinstance(settings, dict) and settings["grid"] == {
        "iterations": [12],
        "total_variation": [1e-4, 1.0],
        "lr": [0.01, 0.1],
    }
    assert settings["victims"] == 2


def test_tuning_changes_the_file_name(task: Task, sample: Sample, tuning: Tuning) -> None:
    x, y = sample.images[:2], sample.labels[:2]

    def stem(tune: Tuning | None) -> str:
        return Plan.of(task, x, y, defense="none", attack=ATTACK, tune=tune).stem

    others = [
        None,
        replace(tuning, lr=(0.02,)),
        replace(tuning, iterations=(0.5,)),
        replace(tuning, total_variation=(0.5,)),
        replace(tuning, x=sample.images[11:13], y=sample.labels[11:13]),
        replace(tuning, y=sample.labels[11:13]),
    ]
    assert len({stem(tuning), *map(stem, others)}) == 7
    # Repeated values and the attack's own value do not change the grid.
    assert stem(replace(tuning, total_variation=(1.0, 1e-4, 1.0))) == stem(tuning)


def test_batches_can_be_tuned_on(task: Task, sample: Sample) -> None:
    x, y = sample.images[:2][None], sample.labels[:2][None]
    tune = Tuning(sample.images[2:6].view(2, 2, 3, 12, 12), sample.labels[2:6].view(2, 2), (), (0.01,), ())
    result = audit(task, x, y, defense="none", attack=replace(ATTACK, iterations=4), tune=tune)
    assert result.tuned is not None and result.tuned.images == 4 and len(result.tuned.trials) == 2


class Untunable(Attack):
    """An attack without tunable settings."""

    name = "untunable"

    def check(self, task: Task) -> None:
        pass

    def run(self, observations: list[Observation], granted: ThreatModel, run: RunOptions) -> Reconstruction:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.rand(2, 3, 8, 8)}, "tune.x = "),
        ({"y": torch.zeros(3, dtype=torch.long)}, "tune.y = "),
        ({"x": torch.full((2, 3, 12, 12), 2.0)}, "tune.x: values in"),
        ({"x": None}, "tune: contains a victim, expected other images"),
        (
            {"x": torch.rand(1, 2, 3, 12, 12), "y": torch.zeros(1, 2).long()},
            "expected batches of 1, as the victims have",
        ),
        ({"lr": (-1.0,)}, "lr = -1.0: expected a number"),
        ({"iterations": (1.5,)}, "iterations = 1.5: expected a number in (0, 1]"),
        ({"iterations": (0,)}, "iterations = 0: expected a number in (0, 1]"),
        ({"total_variation": ("a",)}, "total_variation = 'a': expected a number"),
        ({"attack": Untunable()}, "tune = 'untunable': it has no setting that can be tuned"),
    ],
)
def test_wrong_tuning_raises_one_line_errors(
    task: Task, sample: Sample, tuning: Tuning, changes: dict[str, object], message: str
) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    attack = changes.pop("attack", ATTACK)
    if "x" in changes and changes["x"] is None:
        changes["x"] = sample.images[1:3]
    with pytest.raises(RefinerError) as caught:
        Plan.of(task, x, y, defense="none", attack=attack, tune=replace(tuning, **changes))  # type: ignore[arg-type]
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def uninterrupted(task: Task, sample: Sample, tuning: Tuning) -> tuple[Plan, AuditResult]:
    """An audit that tries a short run and a long one, and its result."""
    tuning = replace(tuning, total_variation=(), iterations=(0.5,))
    settings: dict[str, Any] = {"defense": "none", "attack": ATTACK, "tune": tuning, "metrics": ()}
    victims = (task, sample.images[:2], sample.labels[:2])
    return Plan.of(*victims, **settings), audit(*victims, **settings)


@pytest.mark.parametrize("stage", ["tuning", "attack"])
def test_interrupted_tuning_and_attack_resume(
    stage: str,
    uninterrupted: tuple[Plan, AuditResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_matching, "_ITERATIONS_PER_BLOCK", 4)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_SAVES", 0.0)
    plan, expected = uninterrupted
    stages: list[str] = []

    def interrupt(current: str, done: int, total: int) -> None:
        stages.append(current)
        if current == stage and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_all([plan], tmp_path, on_progress=interrupt)
    before = stages.count("tuning")
    stages.clear()
    (result,) = audit_all([plan], tmp_path, on_progress=lambda current, done, total: stages.append(current))
    # No block of iterations is run twice: two of the short run and three of the long one.
    assert before + stages.count("tuning") == 5
    assert result.tuned == expected.tuned
    np.testing.assert_array_equal(result.reconstruction, expected.reconstruction)
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]
    (again,) = audit_all([plan], tmp_path)
    assert again.tuned == result.tuned


def test_report_states_the_tuning(tuned: AuditResult) -> None:
    names = pair_names([tuned])
    assert tuned.tuned is not None
    chosen = settings_text(tuned.tuned.chosen)
    assert names == [("none", f"inverting (tuned: {chosen})")]
    sections = shared_settings(names, [tuned])
    scores = sections[f"tuning: none against inverting (tuned: {chosen})"]
    assert isinstance(scores, dict) and scores["chosen by"] == "psnr"
    assert len(scores) == 3 + 1 + 4
    assert scores["lr"] == tuned.tuned.chosen["lr"]
    assert any(key == "with iterations 12, TV 1, lr 0.01" for key in scores)
    page = report_page([tuned])
    assert "tuned for each defence on 2 other images" in " ".join(page.note)
    html = render_page(page)
    assert f"none: inverting was tuned to {chosen} on 2 other images" in html
    assert "by rank" not in html
    by_rank = replace(tuned, tuned=replace(tuned.tuned, criterion="rank"))
    assert "by rank as no setting beats the blind guess" in render_page(report_page([by_rank]))
    assert "tuned" not in " ".join(report_page([replace(tuned, tuned=None)]).note)
