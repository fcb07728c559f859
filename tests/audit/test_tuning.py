"""An attacker tuned for each defence on other images: what is chosen, kept, told and refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.conftest import QUICK

from refiner.attacks import GGL, IDLG, Attack, Observation, Reconstruction, checkpoint, matching
from refiner.attacks.base import Run
from refiner.attacks.threat import ThreatModel
from refiner.audit import AuditResult, Plan, Tuning, audit, audit_all
from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.report import report_page
from refiner.audit.summary import point
from refiner.audit.tuning import LR, TOTAL_VARIATION
from refiner.core import Task
from refiner.data import Sample
from refiner.errors import RefinerError
from refiner.report import render_page

ATTACK = replace(QUICK, iterations=12)


@pytest.fixture(scope="module")
def tuning(sample: Sample) -> Tuning:
    return Tuning(sample.images[10:12], sample.labels[10:12], total_variation=(1.0,), lr=(0.01,))


@pytest.fixture(scope="module")
def tuned(task: Task, sample: Sample, tuning: Tuning) -> AuditResult:
    return audit(task, sample.images[:2], sample.labels[:2], defense="none", attack=ATTACK, tune=tuning)


def test_the_grid_holds_the_attacks_own_values() -> None:
    some = Tuning(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))
    points = some.grid(QUICK)
    assert len(points) == 7 * 3
    assert points[0] == {"total_variation": 1e-4, "lr": 0.01}
    assert {point["total_variation"] for point in points} == {1e-4, *TOTAL_VARIATION}
    assert {point["lr"] for point in points} == set(LR)
    assert some.grid(GGL()) == ({"lr": 0.01}, {"lr": 0.03}, {"lr": 0.1})
    assert some.grid(IDLG())[-1] == {"lr": 1.0}


def test_the_best_on_other_images_is_taken(
    task: Task, sample: Sample, tuning: Tuning, tuned: AuditResult
) -> None:
    found = tuned.tuned
    assert found is not None and found.images == 2 and len(found.trials) == 4
    best = max(found.trials, key=lambda trial: trial["psnr"])
    assert best == {**found.chosen, "psnr": best["psnr"]}
    assert len({trial["psnr"] for trial in found.trials}) == 4
    for trial in found.trials:
        settings = {key: value for key, value in trial.items() if key != "psnr"}
        alone = audit(
            task, tuning.x, tuning.y, defense="none", attack=replace(ATTACK, **settings), metrics=()
        )
        assert trial["psnr"] == pytest.approx(alone.means["psnr"].value, abs=0.05)


def test_the_victims_are_attacked_with_what_was_chosen(
    task: Task, sample: Sample, tuning: Tuning, tuned: AuditResult
) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    assert tuned.tuned is not None
    plain = audit(task, x, y, defense="none", attack=replace(ATTACK, **tuned.tuned.chosen))
    np.testing.assert_array_equal(tuned.reconstruction, plain.reconstruction)
    assert plain.tuned is None and tuned.seconds.tuning > 0 == plain.seconds.tuning
    # What is chosen is not always what the attack has.
    lazy = replace(ATTACK, lr=1e-6)
    weak, helped = (
        audit(task, x, y, defense="none", attack=lazy, tune=tune)
        for tune in (None, replace(tuning, total_variation=(), lr=(0.1,)))
    )
    assert helped.tuned is not None and helped.tuned.chosen == {"total_variation": 1e-4, "lr": 0.1}
    assert helped.means["psnr"].value > weak.means["psnr"].value + 1


def test_each_defence_is_tuned_for(task: Task, sample: Sample, tuning: Tuning) -> None:
    """What is tried is tried on what the defence lets out, not on the bare gradient."""
    x, y = sample.images[:1], sample.labels[:1]
    defenses, attack = ("none", "gq:bits=1"), replace(ATTACK, iterations=4)
    one = replace(tuning, total_variation=(), lr=())
    found = [audit(task, x, y, defense=d, attack=attack, tune=one, metrics=()) for d in defenses]
    alone = [audit(task, tuning.x, tuning.y, defense=d, attack=attack, metrics=()) for d in defenses]
    scores = [result.tuned.trials[0]["psnr"] for result in found if result.tuned is not None]
    assert scores == pytest.approx([result.means["psnr"].value for result in alone], abs=0.02)
    assert abs(scores[0] - scores[1]) > 0.05


def test_nothing_is_lost_in_a_file(tuned: AuditResult, tmp_path: Path) -> None:
    again = AuditResult.load(tuned.save(tmp_path / "a.json"))
    assert again.tuned == tuned.tuned and again.seconds == tuned.seconds
    assert again.settings == tuned.settings and again.to_json() == tuned.to_json()
    odd = replace(tuned, tuned=replace(tuned.tuned, trials=({"lr": 0.1, "psnr": float("inf")},)))  # type: ignore[type-var]
    assert AuditResult.from_json(odd.to_json()).tuned == odd.tuned
    told = tuned.settings["tuning"]
    assert isinstance(told, dict) and told["grid"] == {"total_variation": [1e-4, 1.0], "lr": [0.01, 0.1]}
    assert told["victims"] == 2


def test_it_is_part_of_what_the_audit_is(task: Task, sample: Sample, tuning: Tuning) -> None:
    x, y = sample.images[:2], sample.labels[:2]

    def stem(tune: Tuning | None) -> str:
        return Plan.of(task, x, y, defense="none", attack=ATTACK, tune=tune).stem

    others = [
        None,
        replace(tuning, lr=(0.02,)),
        replace(tuning, total_variation=(0.5,)),
        replace(tuning, x=sample.images[11:13], y=sample.labels[11:13]),
        replace(tuning, y=sample.labels[11:13]),
    ]
    assert len({stem(tuning), *map(stem, others)}) == 6
    # A value twice, or the attack's own, is no other grid.
    assert stem(replace(tuning, total_variation=(1.0, 1e-4, 1.0))) == stem(tuning)


def test_batches(task: Task, sample: Sample) -> None:
    x, y = sample.images[:2][None], sample.labels[:2][None]
    tune = Tuning(sample.images[2:6].view(2, 2, 3, 32, 32), sample.labels[2:6].view(2, 2), (), (0.01,))
    found = audit(task, x, y, defense="none", attack=replace(ATTACK, iterations=4), tune=tune)
    assert found.tuned is not None and found.tuned.images == 4 and len(found.tuned.trials) == 2


class Other(Attack):
    """An attack that is none of the engine's."""

    name = "other"

    def check(self, task: Task) -> None:
        pass

    def _rebuild(self, observations: list[Observation], granted: ThreatModel, run: Run) -> Reconstruction:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"x": torch.rand(2, 3, 8, 8)}, "tune.x = "),
        ({"y": torch.zeros(3, dtype=torch.long)}, "tune.y = "),
        ({"x": torch.full((2, 3, 32, 32), 2.0)}, "tune.x: values in"),
        ({"x": None}, "tune: holds a victim, expected other images"),
        (
            {"x": torch.rand(1, 2, 3, 32, 32), "y": torch.zeros(1, 2).long()},
            "tune.x: batches of 2, expected 1",
        ),
        ({"lr": (-1.0,)}, "lr = -1.0: expected a number"),
        ({"total_variation": ("a",)}, "total_variation = 'a': expected a number"),
        ({"attack": Other()}, "tune: other has neither total_variation nor lr"),
    ],
)
def test_a_mistake_is_refused_in_one_line(
    task: Task, sample: Sample, tuning: Tuning, changes: dict[str, object], told: str
) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    attack = changes.pop("attack", ATTACK)
    if "x" in changes and changes["x"] is None:
        changes["x"] = sample.images[1:3]
    with pytest.raises(RefinerError) as caught:
        Plan.of(task, x, y, defense="none", attack=attack, tune=replace(tuning, **changes))  # type: ignore[arg-type]
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("stage", ["tuning", "attack"])
def test_what_was_stopped_goes_on(
    stage: str,
    task: Task,
    sample: Sample,
    tuning: Tuning,
    tuned: AuditResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "_BLOCK", 4)
    monkeypatch.setattr(checkpoint, "_SAVE", 0.0)
    x, y = sample.images[:2], sample.labels[:2]
    plan = Plan.of(task, x, y, defense="none", attack=ATTACK, tune=tuning)
    stages: list[str] = []

    def stop(now: str, done: int, total: int) -> None:
        stages.append(now)
        if now == stage and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_all([plan], tmp_path, on_progress=stop)
    before = stages.count("tuning")
    stages.clear()
    (found,) = audit_all([plan], tmp_path, on_progress=lambda now, done, total: stages.append(now))
    # Four blocks in all; none is run twice.
    assert before + stages.count("tuning") == 3
    assert found.tuned == tuned.tuned
    np.testing.assert_array_equal(found.reconstruction, tuned.reconstruction)
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]
    (again,) = audit_all([plan], tmp_path)
    assert again.tuned == found.tuned


def test_the_report_tells_it(tuned: AuditResult, audited: Callable[[str], AuditResult]) -> None:
    names = pair_names([tuned])
    assert tuned.tuned is not None
    chosen = point(tuned.tuned.chosen)
    assert names == [("none", f"inverting (iterations = 12, tuned: {chosen})")]
    told = shared_settings(names, [tuned])
    scores = told[f"tuned: none against inverting (iterations = 12, tuned: {chosen})"]
    assert isinstance(scores, dict) and len(scores) == 2 + 4
    assert scores["lr"] == tuned.tuned.chosen["lr"]
    assert any(key.startswith("PSNR of TV 1, lr 0.01") for key in scores)
    page = report_page([tuned])
    assert "tuned for each defence on 2 other images" in page.note
    html = render_page(page)
    assert f"none against inverting: attacker tuned: {chosen} on 2 other images" in html
    assert "tuned" not in report_page([audited("none")]).note
