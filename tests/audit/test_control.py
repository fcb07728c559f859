"""Tests of the control: no verdict where the attack fails without a defence, diverged, or was not tried."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.audit.conftest import QUICK

from refiner.attacks import Attack, Observation, Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.audit import AuditResult, Plan, audit_all, report_page
from refiner.audit import audit as full_audit
from refiner.audit.report import page_verdict
from refiner.audit.summary import summary
from refiner.core import Task
from refiner.data import Sample
from refiner.errors import DataError, RefinerError
from refiner.report import render_page

Audited = Callable[[str], AuditResult]
FAILED = "the attack fails on undefended uploads"
# Without LPIPS and noise, which take most of the time and are not at issue here.
audit = partial(full_audit, metrics=("identification",))


@dataclass(frozen=True)
class Oracle(Attack):
    """Returns given images, whatever was uploaded: the originals, grey, or what is not a number."""

    images: torch.Tensor | None = None
    undefended: torch.Tensor | None = None
    """Returned for undefended uploads instead: those that pruning did not set to zero."""
    diverged: bool = False
    name: ClassVar[str] = "oracle"

    def settings(self) -> dict[str, object]:
        return {"diverged": self.diverged}

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        observation = observations[0]
        pruned = float((observation.gradient == 0).float().mean()) > 0.4
        images = self.images if pruned or self.undefended is None else self.undefended
        assert images is not None
        count = observation.victims
        return Reconstruction(
            images[:, None],
            torch.zeros(count, 1, dtype=torch.long),
            torch.zeros(count),
            torch.tensor([self.diverged and pruned] * count),
            0.0,
        )


@pytest.fixture
def victims(sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    return sample.images[:4], sample.labels[:4]


def no_verdicts(result: AuditResult) -> bool:
    """Whether there is no verdict in the API, in JSON, in the table, on a badge or on a card."""
    again = AuditResult.from_json(result.to_json())
    html = render_page(report_page([result]))
    levels = [again.verdict.level, *(finding.verdict.level for finding in again.findings)]
    body = json.loads(result.to_json())["audit"]
    levels += [body["verdict"]["level"], *(finding["verdict"]["level"] for finding in body["findings"])]
    badges = [html.count(f'class="badge {level}"') for level in ("visible", "identifiable", "neither")]
    return set(levels) == {"no verdict"} and badges == [0, 0, 0] and page_verdict([result]) == "no verdict"


@pytest.mark.parametrize("defense", ["none", "pruning"])
def test_failing_attack_gives_no_verdict(
    task: Task, victims: tuple[torch.Tensor, torch.Tensor], defense: str
) -> None:
    grey = Oracle(torch.full_like(victims[0], 0.5))
    result = audit(task, *victims, defense=defense, attack=grey)
    assert no_verdicts(result)
    assert FAILED.removeprefix("the attack ") in result.verdict.reason
    assert result.control is not None and not result.control.works
    text = summary([result])
    assert "no verdict" in text and "The oracle attack fails even without a defence" in text
    if defense == "none":
        assert result.verdict.reason == "the attack fails on undefended uploads"
    else:
        assert result.verdict.reason == FAILED
        assert text.startswith(
            "Without a defence, the oracle attack recovers nothing of 4 images. With pruning: no verdict"
        )


def test_working_attack_gives_a_verdict_on_the_defence(
    task: Task, victims: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = victims
    hidden = Oracle(torch.full_like(x, 0.5), undefended=x)
    result = audit(task, x, y, defense="pruning", attack=hidden)
    assert result.verdict.level == "neither"
    assert {finding.verdict.level for finding in result.findings} == {"neither"}
    assert result.control is not None and result.control.visible.count == 4
    text = summary([result])
    assert text.startswith(
        "Without a defence, the oracle attack recovers all 4 images visibly (mean PSNR 100.0 dB). "
        "With pruning, none of 4 images is visible (mean PSNR"
    )
    shown = audit(task, x, y, defense="pruning", attack=Oracle(x))
    assert shown.verdict.level == "visible" and page_verdict([shown]) == "visible"


def test_control_can_be_left_out_or_given(task: Task, victims: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = victims
    attack = Oracle(x)
    alone = audit(task, x, y, defense="pruning", attack=attack, control=False)
    assert no_verdicts(alone) and alone.control is None
    assert alone.verdict.reason == "no control was run"
    assert alone.verdict.visible.count == 4, "what was measured is still reported"
    assert "With pruning: no verdict, no control was run" in summary([alone])
    # An undefended audit is its own control.
    undefended = audit(task, x, y, defense="none", attack=attack, control=False)
    assert undefended.verdict.level == "visible"
    stages: list[str] = []
    given = audit(
        task,
        x,
        y,
        defense="pruning",
        attack=attack,
        control=undefended,
        on_progress=lambda stage, done, total: stages.append(stage),
    )
    assert "control" not in stages and given.verdict.level == "visible"
    assert given.control == undefended.control
    with pytest.raises(
        DataError, match=r"control = .*expected the same audit without a defence \(other: seed\)"
    ):
        audit(task, x, y, defense="pruning", attack=attack, control=undefended, seed=1)
    with pytest.raises(DataError, match="expected the same audit without a defence"):
        audit(task, x, y, defense="pruning", attack=attack, control=given)
    with pytest.raises(RefinerError, match="control = 3: expected"):
        audit(task, x, y, defense="pruning", attack=attack, control=3)  # type: ignore[arg-type]


def test_control_has_the_same_victims_settings_and_seed(task: Task, sample: Sample) -> None:
    """The control of a lone audit is the undefended audit itself."""
    x, y = sample.images[:2], sample.labels[:2]
    attack, stages = replace(QUICK, iterations=2), list[str]()
    lone = audit(
        task,
        x,
        y,
        defense="pruning",
        attack=attack,
        seed=3,
        on_progress=lambda stage, done, total: stages.append(stage),
    )
    assert stages[0] == "control" and "attack" in stages
    assert lone.control == audit(task, x, y, defense="none", attack=attack, seed=3).control


def test_diverged_attack_gives_no_verdict(task: Task, victims: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = victims
    grey = torch.full_like(x, 0.5)
    result = audit(task, x, y, defense="pruning", attack=Oracle(grey, undefended=x, diverged=True))
    assert no_verdicts(result) and result.verdict.reason == "the attack diverged on 4 of 4 uploads"
    assert "oracle diverged on 4 of 4 uploads of pruning" in summary([result])
    # What the attack shows before it diverges is visible all the same.
    assert audit(task, x, y, defense="pruning", attack=Oracle(x, diverged=True)).verdict.level == "visible"


def test_reconstructions_that_are_not_finite_give_no_verdict(
    task: Task, victims: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = victims
    broken = torch.full_like(x, 0.5)
    broken[1, 0, 3, 3], broken[2, 0, 3, 3] = float("nan"), float("inf")
    result = audit(task, x, y, defense="pruning", attack=Oracle(broken, undefended=x))
    assert result.diverged == (False, True, True, False)
    assert no_verdicts(result) and result.verdict.reason == "the attack diverged on 2 of 4 uploads"
    assert np.unique(result.reconstruction[1]).size == 1, "shown as grey"
    partly = audit(
        task, x, y, defense="pruning", attack=Oracle(torch.cat([broken[1:2], x[1:]]), undefended=x)
    )
    assert partly.verdict.level == "visible"
    assert [finding.verdict.level for finding in partly.findings] == ["no verdict", *["visible"] * 3]


def plans_of(task: Task, victims: tuple[torch.Tensor, torch.Tensor], *defenses: str) -> list[Plan]:
    attack = Oracle(torch.full_like(victims[0], 0.5), undefended=victims[0])
    return [Plan.of(task, *victims, defense=defense, attack=attack, metrics=()) for defense in defenses]


def test_audits_in_a_folder_share_one_control(
    task: Task, victims: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    starts: list[str] = []

    def note(plan: Plan, result: AuditResult | None) -> None:
        if result is None:
            starts.append(plan.defense_name)

    plans = plans_of(task, victims, "pruning", "pruning:rate=0.5", "none")
    both = audit_all(plans[:2], tmp_path, on_pair=note)
    assert starts == ["none", "pruning", "pruning"]
    assert [result.verdict.level for result in both] == ["neither", "neither"]
    assert len(list(tmp_path.glob("*.json"))) == 3
    starts.clear()
    results = audit_all(plans, tmp_path, on_pair=note)
    assert starts == [], "the control is the result of `none`"
    assert [result.defense for result in results] == ["pruning", "pruning", "none"]
    assert results[0].control == results[2].control


def test_estimate_from_robust_data_does_not_change_the_control(
    task: Task, victims: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defended, undefended, plain = (
        Plan.of(task, *victims, defense=d, attack=QUICK, metrics=(), from_robust=r)
        for d, r in (("refiner", True), ("none", True), ("none", False))
    )
    assert defended.robust_estimation is not None and defended.control().stem == plain.stem
    assert undefended.stem == plain.stem


def test_control_is_added_to_results_that_lack_it(
    task: Task, victims: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    (plan,) = plans_of(task, victims, "pruning")
    (alone,) = audit_all([plan], tmp_path, control=False)
    assert alone.verdict.reason == "no control was run" and len(list(tmp_path.glob("*.json"))) == 1
    starts: list[str] = []
    (judged,) = audit_all([plan], tmp_path, on_pair=lambda p, r: None if r else starts.append(p.defense_name))
    assert starts == ["none"] and judged.verdict.level == "neither"
    assert AuditResult.load(tmp_path / f"{plan.stem}.json").verdict == judged.verdict
    # A control once found is not forgotten.
    assert audit_all([plan], tmp_path, control=False)[0].verdict.level == "neither"


def test_lone_audit_saves_the_state_of_its_control(task: Task, sample: Sample, tmp_path: Path) -> None:
    state = tmp_path / "x.safetensors"
    attack = replace(QUICK, iterations=1)
    audit(
        task, sample.images[:1], sample.labels[:1], defense="pruning", attack=attack, metrics=(), resume=state
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.control.safetensors", "x.safetensors"]
