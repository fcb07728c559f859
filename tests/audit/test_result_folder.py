"""Tests of `audit_all`: finished audits are reused, interrupted ones resumed."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.audit.conftest import QUICK
from torch.nn import CrossEntropyLoss

from refiner.attacks import GGL, ThreatModel
from refiner.audit import AuditResult, Plan, audit_all
from refiner.audit.local_update import UPLOADS_REVISION
from refiner.core import Task
from refiner.data import Sample
from refiner.defenses import Chain, NoDefense, Refiner
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.generator import Generator


@pytest.fixture
def plans(task: Task, sample: Sample) -> list[Plan]:
    x, y = sample.images[:2], sample.labels[:2]
    attack = replace(QUICK, iterations=4)
    return [Plan.of(task, x, y, defense=name, attack=attack, metrics=()) for name in ("none", "refiner")]


def test_results_of_an_earlier_revision_of_uploads_are_not_taken(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Plan.__module__], "UPLOADS_REVISION", UPLOADS_REVISION - 1)
    earlier = replace(plans[1])
    assert earlier.stem != plans[1].stem


def test_interrupted_audits_resume(plans: list[Plan], tmp_path: Path) -> None:
    calls: list[tuple[str, bool]] = []
    reached: list[int] = []
    kill = True

    def pair(plan: Plan, result: AuditResult | None) -> None:
        calls.append((plan.defense_name, result is not None))

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "attack" and calls[-1][0] == "refiner":
            reached.append(done)
            # Ctrl-C in the second audit, after its first victim.
            if kill and done > total // 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_all(plans, tmp_path, chunk=1, on_pair=pair, on_progress=progress)
    assert calls == [("none", False), ("none", True), ("refiner", False)]
    assert [file.stem for file in tmp_path.glob("*.json")] == [plans[0].stem]
    assert [file.name for file in tmp_path.glob("*.safetensors")] == [f"{plans[1].stem}.state.safetensors"]

    kill = False
    calls.clear()
    reached.clear()
    results = audit_all(plans, tmp_path, chunk=1, on_pair=pair, on_progress=progress)
    assert calls == [("none", True), ("refiner", False), ("refiner", True)]
    # The last state is on disk: nothing is attacked again.
    assert reached == []
    assert results[1].seconds.resumed
    assert not list(tmp_path.glob("*.safetensors"))
    fresh = audit_all(plans[1:], tmp_path / "fresh", chunk=1)
    np.testing.assert_array_equal(fresh[0].reconstruction, results[1].reconstruction)


def test_plans_with_other_settings_have_other_file_names(plans: list[Plan]) -> None:
    first = plans[0]
    changed = [
        replace(first, seed=1),
        replace(first, attack=QUICK),
        replace(first, x=first.x.flip(0)),
        replace(first, threat=ThreatModel(labels=True)),
        Plan.of(first.task, first.x, first.y, defense="none", attack=first.attack, public=1 - first.x[0]),
        Plan.of(
            Task(first.task.model, example=first.x[0], loss=CrossEntropyLoss(label_smoothing=0.5)),
            first.x,
            first.y,
            defense="none",
            attack=first.attack,
        ),
    ]
    assert len({first.stem, *(plan.stem for plan in changed)}) == 7


def test_result_with_other_settings_is_rejected(plans: list[Plan], tmp_path: Path) -> None:
    (result,) = audit_all(plans[:1], tmp_path)
    result.save(tmp_path / f"{plans[1].stem}.json")
    with pytest.raises(DataError, match="has other settings"):
        audit_all(plans, tmp_path)


def test_every_difference_in_settings_is_named(plans: list[Plan], tmp_path: Path) -> None:
    """Another generator, evaluation network or image name makes another audit."""
    first, paper = plans[0], replace(plans[1], defense=Refiner.paper())
    own_network = replace(plans[1], defense=Refiner.paper(network=EvaluationNetwork()))
    (result,) = audit_all(plans[:1], tmp_path)
    threat, files = ThreatModel(generator=True), [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file in files:
        Generator(latent=4, width=4).save(file)
    generators = [GGL(iterations=1, generator=Generator.load(file)) for file in files]
    searched = [replace(first, attack=attack, threat=threat) for attack in generators]
    assert searched[0].attack.settings() == searched[1].attack.settings()
    chained, other_chain = (
        replace(plan, defense=Chain((plan.defense, NoDefense()))) for plan in (own_network, paper)
    )
    for plan, other, setting in (
        (own_network, paper, "networks, evaluation, for the defence"),
        (chained, other_chain, "networks, evaluation, for the defence"),
        (searched[0], searched[1], "networks, generator, for the attack"),
        (first, replace(first, names=["a", "b"]), "data, names sha256"),
        (first, replace(first, deterministic=True), "deterministic"),
        (first, replace(first, seed=5), "seed"),
    ):
        assert plan.stem != other.stem
        file = replace(result, settings=other.settings).save(tmp_path / f"{plan.stem}.json")
        with pytest.raises(DataError, match=rf"has other settings \({setting}\); rename it"):
            audit_all([plan], tmp_path)
        file.unlink()


def test_damaged_state_is_rejected_before_anything_is_run(plans: list[Plan], tmp_path: Path) -> None:
    state = tmp_path / f"{plans[1].stem}.state.safetensors"
    state.write_bytes(b"junk")
    with pytest.raises(DataError, match=r"state\.safetensors.*nothing was overwritten"):
        audit_all(plans, tmp_path, on_pair=lambda plan, result: pytest.fail("something was run"))
    assert state.read_bytes() == b"junk"
