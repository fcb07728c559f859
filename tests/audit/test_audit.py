"""The audit as a library call: what it finds, and what it refuses before it spends an hour."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.conftest import QUICK
from torch import Tensor

import refiner
from refiner.attacks import InvertingGradients, ThreatModel, checkpoint, matching
from refiner.audit import AuditResult, audit
from refiner.audit.summary import summary
from refiner.core import Task
from refiner.data import Sample
from refiner.defenses import Refiner
from refiner.errors import DataError, RefinerError, SettingError
from refiner.models import LeNet

Audited = Callable[[str], AuditResult]


def test_it_is_the_main_verb() -> None:
    assert refiner.audit is audit


def test_a_defence_lets_less_through_than_none(audited: Audited) -> None:
    bare, hidden = audited("none"), audited("refiner")
    assert bare.means["psnr"].value > hidden.means["psnr"].value + 2
    assert bare.means["ssim"].value > hidden.means["ssim"].value
    assert bare.means["lpips"].value < hidden.means["lpips"].value
    # Both are held against the same guess.
    assert bare.means["blind_psnr"] == hidden.means["blind_psnr"]


def test_what_a_result_holds(audited: Audited, sample: Sample) -> None:
    bare, hidden = audited("none"), audited("refiner")
    assert bare.label_recovery == 1.0
    assert (bare.victims, bare.batch, len(bare.findings), bare.candidates) == (3, 1, 3, 200)
    assert bare.verdict.exposed + bare.verdict.borderline + bare.verdict.protected == 3
    assert all(f.verdict.level in ("exposed", "borderline", "protected") for f in bare.findings)
    assert [f.label for f in bare.findings] == [0, 1, 2]
    low, high = bare.means["psnr"].low, bare.means["psnr"].high
    assert low is not None and high is not None and low <= bare.means["psnr"].value <= high
    np.testing.assert_array_equal(
        bare.original, (sample.images[:3] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    )
    assert bare.robust is None
    assert hidden.robust is not None and hidden.robust.shape == hidden.original.shape
    assert hidden.settings["defense"]["alpha"] == Refiner().alpha  # type: ignore[index]
    assert hidden.settings["attack"]["iterations"] == 24  # type: ignore[index]
    assert hidden.settings["metrics"]["public"] == "197 images of the bundled sample"  # type: ignore[index]
    assert hidden.seconds.attack > 0 and not hidden.seconds.resumed
    assert not any(hidden.diverged)


def test_the_seed_alone_decides(task: Task, sample: Sample) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    one, again, other = (
        audit(task, x, y, defense=Refiner(iterations=1), attack=replace(QUICK, iterations=1), seed=seed)
        for seed in (0, 0, 1)
    )
    assert one.robust is not None and again.robust is not None and other.robust is not None
    for name in ("robust", "reconstruction"):
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
        assert not np.array_equal(getattr(other, name), getattr(again, name))
    assert one.settings == again.settings != other.settings


def test_batches_are_put_in_order_before_they_are_judged(task: Task, sample: Sample) -> None:
    x, y = sample.images[:4].view(2, 2, 3, 32, 32), sample.labels[:4].view(2, 2)
    found = audit(task, x, y, defense="none", attack=replace(QUICK, iterations=20))
    assert (found.victims, found.batch, len(found.findings)) == (2, 2, 4)
    assert [f.victim for f in found.findings] == [0, 0, 1, 1]
    assert found.label_recovery == 1.0
    # An order at random would leave half of them unlike their own original.
    assert all(f.rank_pixels == 1 for f in found.findings)
    granted = audit(
        task, x, y, defense="none", attack=replace(QUICK, iterations=1), threat=ThreatModel(labels=True)
    )
    assert granted.label_recovery is None


def test_images_that_metrics_do_not_fit(sample: Sample) -> None:
    x = torch.nn.functional.avg_pool2d(sample.images[:2], 2)[:, :, :12, :12]
    small = Task(LeNet(input_shape=(3, 12, 12)), example=x)
    attack = replace(QUICK, iterations=1)
    found = audit(small, x, sample.labels[:2], defense="none", attack=attack)
    # Too small for LPIPS and the evaluation network, and no public images of that shape.
    assert found.findings[0].lpips is None and found.findings[0].noise is None
    assert "lpips" not in found.means
    assert found.settings["metrics"]["blind guesses"] == ["grey", "own colour"]  # type: ignore[index]
    assert found.candidates == 2
    with pytest.raises(DataError, match="LPIPS takes"):
        audit(small, x, sample.labels[:2], metrics=["lpips"])
    odd = Task(LeNet(input_shape=(2, 12, 12)), example=x[:, :2])
    with pytest.raises(DataError, match="C = 1 or 3"):
        audit(odd, x[:, :2], sample.labels[:2])
    one = audit(small, x[:1], sample.labels[:1], defense="none", attack=attack)
    assert one.candidates is None and one.means["psnr"].low is None


def test_public_images_never_hold_a_victim(task: Task, sample: Sample) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    attack = replace(QUICK, iterations=1)
    found = audit(
        task, x, y, defense="none", attack=attack, public=sample.images[:50], metrics=["identification"]
    )
    assert found.candidates == 50
    assert "lpips" not in found.means and "noise" not in found.means
    alone = audit(task, x[:1], y[:1], defense="none", attack=attack)
    assert alone.candidates == 200
    # Victims of another kind are not looked for among CIFAR's images.
    foreign = audit(task, 1 - x, y, defense="none", attack=attack)
    assert foreign.candidates == 2


def _wrong() -> list[tuple[str, dict[str, object]]]:
    x, y = torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    return [
        ("x = \\[3, 32, 32\\]", {"x": x[0]}),
        ("x = list", {"x": [1]}),
        ("x: values in", {"x": 2 * x}),
        ("x: NaN", {"x": x * torch.nan}),
        ("y = \\[1\\]: expected \\[2\\]", {"y": y[:1]}),
        ("y holds label 10", {"y": y + 9}),
        ("did you mean 'refiner'", {"defense": "refine"}),
        ("did you mean 'inverting'", {"attack": "invert"}),
        ("metrics = 'fid'", {"metrics": ["fid"]}),
        ("ggl needs generator", {"attack": "ggl"}),
        ("seed = -1", {"seed": -1}),
        ("names: 1, expected 2", {"names": ["a"]}),
        ("public: images of shape", {"public": torch.rand(2, 3, 8, 8)}),
        ("public: holds nothing but victims", {"public": x, "x": x}),
        ("chunk = 0", {"chunk": 0}),
        ("task = LeNet", {"task": LeNet()}),
    ]


@pytest.mark.parametrize(
    ("told", "given"), _wrong(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_mistake_is_refused_in_one_line(task: Task, told: str, given: dict[str, object]) -> None:
    whole: dict[str, object] = {"task": task, "x": torch.rand(2, 3, 32, 32), "y": torch.tensor([0, 1])}
    whole |= {"defense": "none", "attack": replace(QUICK, iterations=1), **given}
    with pytest.raises(RefinerError, match=told) as caught:
        audit(**whole)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_killed_audit_goes_on(
    lenet: Task, sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audited: Audited
) -> None:
    # States every few iterations, not every 20 s.
    monkeypatch.setattr(matching, "_BLOCK", 6)
    monkeypatch.setattr(checkpoint, "_SAVE", 0.0)
    state = tmp_path / "state.safetensors"
    stages: list[tuple[str, int]] = []

    def run(kill_at: int | None) -> AuditResult:
        def note(stage: str, done: int, total: int) -> None:
            stages.append((stage, done))
            if stage == "attack" and done == kill_at:
                raise KeyboardInterrupt

        x, y = sample.images[:3], sample.labels[:3]
        return audit(lenet, x, y, defense="none", attack=QUICK, resume=state, on_progress=note)

    with pytest.raises(KeyboardInterrupt):
        run(3 * 12)
    stages.clear()
    found = run(None)
    assert found.seconds.resumed
    assert [done for stage, done in stages if stage == "attack"] == [3 * 18, 3 * 24]
    assert [stage for stage, _ in stages][-1] == "metrics"
    np.testing.assert_array_equal(found.reconstruction, audited("none").reconstruction)


def as_tensor(pixels: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def test_scores_are_those_of_the_images(audited: Audited) -> None:
    found = audited("none")
    again = refiner.metrics.psnr(as_tensor(found.reconstruction), as_tensor(found.original))
    # Up to the rounding of the images to 256 levels.
    assert again.tolist() == pytest.approx(found.scores("psnr"), abs=0.05)


def test_an_attack_that_fails_is_not_called_protection(task: Task, sample: Sample) -> None:
    weak = InvertingGradients(iterations=1)
    x, y = sample.images[:2], sample.labels[:2]
    result = audit(task, x, y, defense="none", attack=weak, public=sample.images[2:4])
    told = summary([result])
    assert "says nothing of the others" in told
    assert "4 candidates are too few to tell" in told
    strong = replace(result, attack="strong", verdict=replace(result.verdict, level="exposed"))
    assert f"{result.attack} fails without any defence" in summary([result, strong])
    assert "fails" not in summary([strong])


def test_what_is_proven_is_said(audited: Audited) -> None:
    """Of Refiner nothing; of no defence nothing is expected."""
    hidden = audited("refiner")
    assert "Nothing is proven of what a defence hides here" in summary([audited("none"), hidden])
    assert "roven" not in summary([audited("none")])
    settings = {**hidden.settings, "defense": {"proven": True, "guarantee": "(ε, δ) for one sample"}}
    proven = replace(hidden, defense="dp", settings=settings)
    assert "Of dp is proven: (ε, δ) for one sample." in summary([proven])
    assert "Nothing is proven" not in summary([proven])
    assert "Nothing is proven of what the others hide" in summary([proven, hidden])


def test_an_attack_that_diverged_is_not_called_protection(audited: Audited) -> None:
    hidden = audited("refiner")
    lost = replace(hidden, diverged=(True, *hidden.diverged[1:]))
    assert f"diverged on 1 of {hidden.victims} uploads of refiner, which is no protection" in summary([lost])
    assert "diverged" not in summary([hidden])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attack": InvertingGradients}, "attack = <class .*: expected a name"),
        ({"defense": None}, "defense = None: expected a name"),
        ({"threat": "labels"}, "threat = 'labels': expected a ThreatModel"),
    ],
)
def test_what_is_no_defence_or_attack(
    settings: dict[str, object], told: str, task: Task, sample: Sample
) -> None:
    with pytest.raises(SettingError, match=told):
        audit(task, sample.images[:1], sample.labels[:1], **settings)  # type: ignore[arg-type]


def test_of_a_chain_is_proven_what_is_of_its_first_part(task: Task, sample: Sample) -> None:
    def told(*defenses: str) -> str:
        attack = InvertingGradients(iterations=1)
        x, y = sample.images[:1], sample.labels[:1]
        return summary([audit(task, x, y, defense=name, attack=attack, metrics=()) for name in defenses])

    assert "Of " not in told("pruning+dp-gaussian", "pruning+gq")
    both = told("dp-gaussian:per_sample=true", "dp-gaussian")
    assert "Of dp-gaussian (per_sample = True) is proven: (ε, δ) for one sample" in both
    assert "With dp-gaussian, inverting" in both
    assert "With dp-gaussian (per_sample = True), inverting" in both
    assert "Nothing is proven of what the others hide" in both
    assert "Of dp-gaussian+gq (dp-gaussian.per_sample = True) is proven" in told(
        "dp-gaussian:per_sample=true+gq"
    )
