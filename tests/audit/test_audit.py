"""Tests of `refiner.audit`: results, and errors that are raised before the attack."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.conftest import QUICK
from torch import Tensor

import refiner
from refiner.attacks import InvertingGradients, ThreatModel
from refiner.attacks.matching import checkpoint, gradient_matching
from refiner.audit import AuditResult, Plan, audit
from refiner.audit.summary import summary
from refiner.core import Task
from refiner.data import Sample
from refiner.defenses import Refiner
from refiner.errors import DataError, RefinerError, SettingError
from refiner.metrics.verdict import LEVELS
from refiner.models import LeNet

Audited = Callable[[str], AuditResult]


def test_audit_is_exported_at_top_level() -> None:
    assert refiner.audit is audit


def test_refiner_leaks_less_than_no_defence(audited: Audited) -> None:
    undefended, defended = audited("none"), audited("refiner")
    assert undefended.means["psnr"].value > defended.means["psnr"].value + 1
    assert undefended.means["ssim"].value > defended.means["ssim"].value
    # Both are compared with the same blind guess.
    assert undefended.means["blind_psnr"] == defended.means["blind_psnr"]


def test_result_contains_scores_images_and_settings(audited: Audited, sample: Sample) -> None:
    undefended, defended = audited("none"), audited("refiner")
    assert undefended.label_recovery == 1.0
    assert (undefended.victims, undefended.batch, len(undefended.findings), undefended.candidates) == (
        3,
        1,
        3,
        200,
    )
    assert undefended.verdict.visible.total == 3
    assert undefended.verdict.identifiable.count >= undefended.verdict.visible.count
    assert all(f.verdict.level in LEVELS for f in undefended.findings)
    assert undefended.control is not None and undefended.control == defended.control
    assert [f.label for f in undefended.findings] == [0, 1, 2]
    low, high = undefended.means["psnr"].low, undefended.means["psnr"].high
    assert low is not None and high is not None and low <= undefended.means["psnr"].value <= high
    np.testing.assert_array_equal(
        undefended.original, (sample.images[:3] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    )
    assert undefended.robust is None
    assert defended.robust is not None and defended.robust.shape == defended.original.shape
    assert defended.settings["defense"]["alpha"] == Refiner().alpha  # type: ignore[index]
    assert defended.settings["attack"]["iterations"] == 24  # type: ignore[index]
    assert defended.settings["metrics"]["public"] == "197 images of the bundled sample"  # type: ignore[index]
    assert defended.seconds.attack > 0 and not defended.seconds.resumed
    assert not any(defended.diverged)


def test_results_depend_on_the_seed_only(task: Task, sample: Sample) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    one, again, other = (
        audit(
            task,
            x,
            y,
            defense=Refiner(iterations=1),
            attack=replace(QUICK, iterations=1),
            metrics=(),
            seed=seed,
            control=False,
        )
        for seed in (0, 0, 1)
    )
    assert one.robust is not None and again.robust is not None and other.robust is not None
    for name in ("robust", "reconstruction"):
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
        assert not np.array_equal(getattr(other, name), getattr(again, name))
    assert one.settings == again.settings != other.settings


@pytest.mark.processes
def test_batches_are_matched_to_their_originals_before_scoring(task: Task, sample: Sample) -> None:
    x, y = sample.images[:4].view(2, 2, 3, 32, 32), sample.labels[:4].view(2, 2)
    result = audit(task, x, y, defense="none", attack=replace(QUICK, iterations=20))
    assert (result.victims, result.batch, len(result.findings)) == (2, 2, 4)
    assert [f.victim for f in result.findings] == [0, 0, 1, 1]
    assert result.label_recovery == 1.0
    # In a random order half of them would be unlike their own original.
    assert all(f.rank_pixels == 1 for f in result.findings)
    granted = audit(
        task, x, y, defense="none", attack=replace(QUICK, iterations=1), threat=ThreatModel(labels=True)
    )
    assert granted.label_recovery is None


def test_metrics_that_do_not_fit_the_images_are_left_out(sample: Sample) -> None:
    x = torch.nn.functional.avg_pool2d(sample.images[:2], 2)[:, :, :12, :12]
    small = Task(LeNet(input_shape=(3, 12, 12)), example=x)
    attack = replace(QUICK, iterations=1)
    result = audit(small, x, sample.labels[:2], defense="none", attack=attack)
    # Too small for LPIPS and the evaluation network, and no public images of that shape.
    assert result.findings[0].lpips is None and result.findings[0].noise is None
    assert "lpips" not in result.means
    assert result.settings["metrics"]["blind guesses"] == ["grey", "own colour"]  # type: ignore[index]
    assert result.candidates == 2
    with pytest.raises(DataError, match="LPIPS"):
        audit(small, x, sample.labels[:2], metrics=["lpips"])
    odd = Task(LeNet(input_shape=(2, 12, 12)), example=x[:, :2])
    with pytest.raises(DataError, match="C = 1 or 3"):
        audit(odd, x[:, :2], sample.labels[:2])
    one = audit(small, x[:1], sample.labels[:1], defense="none", attack=attack)
    assert one.candidates is None and one.means["psnr"].low is None
    assert "Identification was not measured: there is no other image to pick the original" in summary([one])
    chosen = audit(small, x, sample.labels[:2], defense="none", attack=attack, metrics=())
    assert "Identification was not measured: the metrics that were chosen leave it out." in summary([chosen])


def test_public_images_never_contain_a_victim(task: Task, sample: Sample) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    attack = replace(QUICK, iterations=1)
    result = audit(
        task, x, y, defense="none", attack=attack, public=sample.images[:50], metrics=["identification"]
    )
    assert result.candidates == 50
    assert "lpips" not in result.means and "noise" not in result.means
    alone = audit(task, x[:1], y[:1], defense="none", attack=attack)
    assert alone.candidates == 200
    # CIFAR-10 images are no candidates for victims of another dataset.
    foreign = audit(task, 1 - x, y, defense="none", attack=attack)
    assert foreign.candidates == 2
    assert "among 2 candidates it can't be distinguished from chance; it takes 200 images" in summary(
        [foreign]
    )
    # Images to learn from are, if there is nothing else to take, for any attack.
    pool = (torch.cat([1 - sample.images[:150], 1 - x]), sample.labels[:152])
    learned = audit(task, 1 - x, y, defense="none", attack=attack, pool=pool, metrics=["identification"])
    assert learned.candidates == 150 and "Identification" not in summary([learned])
    of_sample = Plan.of(task, x, y, pool=pool).scorer.public
    assert of_sample.candidates is not None and len(of_sample.candidates) == 198
    assert Plan.of(task, 1 - x, y, pool=(pool[0][..., :28], pool[1])).scorer.public.candidates is None
    with pytest.raises(DataError, match="pool = "):
        audit(task, x, y, defense="none", attack=attack, pool=(pool[0], pool[1][:5]))


def _wrong_arguments() -> list[tuple[str, dict[str, object]]]:
    x, y = torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    return [
        ("x = float32 tensor of shape \\[3, 32, 32\\]: expected images", {"x": x[0]}),
        ("x = \\[1\\]: expected images", {"x": [1]}),
        ("x: values in", {"x": 2 * x}),
        ("x: NaN", {"x": x * torch.nan}),
        ("y = int64 tensor of shape \\[1\\]: expected labels of shape \\[2\\]", {"y": y[:1]}),
        ("y contains label 10", {"y": y + 9}),
        ("did you mean 'refiner'", {"defense": "refine"}),
        ("did you mean 'inverting'", {"attack": "invert"}),
        ("metrics = 'fid'", {"metrics": ["fid"]}),
        ("ggl needs generator", {"attack": "ggl"}),
        ("seed = -1", {"seed": -1}),
        ("names: 1 names, expected 2", {"names": ["a"]}),
        (
            "public = float32 tensor of shape .*: expected images of the victims' shape",
            {"public": torch.rand(2, 3, 8, 8)},
        ),
        ("public: contains only victims", {"public": x, "x": x}),
        ("chunk = 0", {"chunk": 0}),
        ("task = LeNet", {"task": LeNet()}),
    ]


@pytest.mark.parametrize(
    ("message", "changes"), _wrong_arguments(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_wrong_arguments_raise_one_line_errors(task: Task, message: str, changes: dict[str, object]) -> None:
    arguments: dict[str, object] = {"task": task, "x": torch.rand(2, 3, 32, 32), "y": torch.tensor([0, 1])}
    arguments |= {"defense": "none", "attack": replace(QUICK, iterations=1), **changes}
    with pytest.raises(RefinerError, match=message) as caught:
        audit(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_interrupted_audit_resumes(
    wide_task: Task, sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audited: Audited
) -> None:
    # Save the state every few iterations, not every 20 s.
    monkeypatch.setattr(gradient_matching, "_ITERATIONS_PER_BLOCK", 6)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_SAVES", 0.0)
    state = tmp_path / "state.safetensors"
    stages: list[tuple[str, int]] = []

    def run(kill_at: int | None) -> AuditResult:
        def note(stage: str, done: int, total: int) -> None:
            stages.append((stage, done))
            if stage == "attack" and done == kill_at:
                raise KeyboardInterrupt

        x, y = sample.images[:3], sample.labels[:3]
        return audit(wide_task, x, y, defense="none", attack=QUICK, resume=state, on_progress=note)

    with pytest.raises(KeyboardInterrupt):
        run(3 * 12)
    stages.clear()
    result = run(None)
    assert result.seconds.resumed
    assert [done for stage, done in stages if stage == "attack"] == [3 * 18, 3 * 24]
    assert [stage for stage, _ in stages][-1] == "metrics"
    np.testing.assert_array_equal(result.reconstruction, audited("none").reconstruction)


def as_tensor(pixels: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def test_scores_match_the_saved_images(audited: Audited) -> None:
    result = audited("none")
    again = refiner.metrics.psnr(as_tensor(result.reconstruction), as_tensor(result.original))
    # Up to rounding the images to 256 levels.
    assert again.tolist() == pytest.approx(result.scores("psnr"), abs=0.05)


def test_failing_attack_is_not_reported_as_protection(task: Task, sample: Sample) -> None:
    weak = InvertingGradients(iterations=1)
    x, y = sample.images[:2], sample.labels[:2]
    result = audit(task, x, y, defense="none", attack=weak, public=sample.images[2:4])
    assert result.verdict.level == "no verdict"
    text = summary([result])
    assert "its results say nothing about the defences" in text
    assert "among 4 candidates it can't be distinguished from chance" in text
    assert result.control is not None
    works = replace(result.control, level="visible")
    strong = replace(result, attack="strong", verdict=replace(result.verdict, level="visible"), control=works)
    assert "The inverting attack fails even without a defence" in summary([result, strong])
    assert "fails" not in summary([strong])
    # Where the attack hardly shows anything undefended, "not visible" is no merit of the defence.
    weak_control = replace(strong, control=replace(works, level="identifiable"))
    assert "Even without a defence the strong attack shows hardly any image: only" in summary([weak_control])
    text = summary([weak_control, replace(weak_control, attack="other")])
    assert "the strong and other attacks show hardly any image: only what they identify says" in text


def test_summary_states_guarantees(audited: Audited) -> None:
    defended = audited("refiner")
    assert "Nothing is proven for refiner: these are measurements" in summary([audited("none"), defended])
    assert "roven" not in summary([audited("none")])
    settings = {**defended.settings, "defense": {"proven": True, "guarantee": "(ε, δ) for one sample"}}
    proven = replace(defended, defense="dp", settings=settings)
    assert "Proven for dp: (ε, δ) for one sample." in summary([proven])
    assert "Nothing is proven" not in summary([proven])
    assert "Nothing is proven for refiner" in summary([proven, defended])


def test_diverged_attack_is_not_reported_as_protection(audited: Audited) -> None:
    defended = audited("refiner")
    diverged = replace(defended, diverged=(True, *defended.diverged[1:]))
    sentence = f"diverged on 1 of {defended.victims} uploads of refiner, which does not mean"
    assert sentence in summary([diverged])
    assert "diverged" not in summary([defended])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attack": InvertingGradients}, "attack = <class .*: expected a name or an instance of"),
        ({"defense": None}, "defense = None: expected a name or an instance of"),
        ({"threat": "labels"}, "threat = 'labels': expected a ThreatModel"),
    ],
)
def test_other_objects_than_defences_and_attacks_are_rejected(
    settings: dict[str, object], message: str, task: Task, sample: Sample
) -> None:
    with pytest.raises(SettingError, match=message):
        audit(task, sample.images[:1], sample.labels[:1], **settings)  # type: ignore[arg-type]


def test_guarantee_of_a_chain_is_that_of_its_first_part(task: Task, sample: Sample) -> None:
    def summary_of(*defenses: str) -> str:
        attack = InvertingGradients(iterations=1)
        x, y = sample.images[:1], sample.labels[:1]
        results = [
            audit(task, x, y, defense=name, attack=attack, metrics=(), control=False) for name in defenses
        ]
        return summary(results)

    assert "Proven for" not in summary_of("pruning+dp-gaussian", "pruning+gq")
    both = summary_of("dp-gaussian:per_sample=true", "dp-gaussian")
    assert "Proven for dp-gaussian (per_sample = True): (ε, δ)-differential privacy for one sample" in both
    assert "With dp-gaussian: no verdict" in both
    assert "With dp-gaussian (per_sample = True): no verdict" in both
    assert "Nothing is proven for dp-gaussian: these" in both
    assert "Proven for dp-gaussian+gq (dp-gaussian.per_sample = True):" in summary_of(
        "dp-gaussian:per_sample=true+gq"
    )
