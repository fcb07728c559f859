"""What is reached from robust data: planted cases with known answers, and as a part of an audit."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.small_learning import CLASSES, small_task, smooth_images
from torch import Tensor
from typer.testing import CliRunner

from refiner.attacks import InvertingGradients, Observation, SimulatedUploads, Simulator
from refiner.attacks.learning.network_training import TrainingState
from refiner.audit import AuditResult, Plan, audit, audit_all
from refiner.audit.from_robust import RobustEstimation, estimate_from_robust
from refiner.audit.result_records import FromRobust, from_robust_from_json
from refiner.audit.summary import from_robust_text
from refiner.cli import app
from refiner.core import Task, flatten, gradients
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.errors import DataError, SettingError

QUICK = RobustEstimation(epochs=2, batch=20, lr=3e-3, width=8, draws=1)
X, Y = smooth_images(40, seed=0)[:, None], torch.arange(40)[:, None] % CLASSES
Degrade = Callable[[Tensor, torch.Generator], Tensor]
tiny_task = cache(small_task)


def simulator_of(degrade: Degrade, count: int = 300) -> Simulator:
    """Robust data made by `degrade`, and their gradients."""

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        robust = degrade(x, torch.Generator().manual_seed(seed))
        return SimulatedUploads([flatten(gradients(tiny_task(), robust, y))], robust)

    return Simulator(smooth_images(count, seed=1), torch.arange(count) % CLASSES, protect)


def reached(degrade: Degrade, x: Tensor = X, y: Tensor = Y, **options: object) -> FromRobust:
    simulator = simulator_of(degrade)
    victims = simulator.protect(x, y, 2**50)
    assert victims.robust is not None
    observation = Observation(tiny_task(), tiny_task().parameters(), victims.gradients[0], x.shape[1])
    settings = {"settings": QUICK, **options}
    return estimate_from_robust(simulator, observation, victims.robust, x, y, **settings)  # type: ignore[arg-type]


def noisy(strength: float) -> Degrade:
    return lambda x, generator: x + strength * torch.randn(x.shape, generator=generator)


def unrelated(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator)


@pytest.mark.processes
def test_weak_noise_is_removed_and_strong_noise_is_not() -> None:
    weak, strong = reached(noisy(0.05)), reached(noisy(0.7))
    assert weak.psnr > 24 and weak.top1 == 1
    assert weak.wiener_psnr is not None and weak.wiener_psnr > 24
    assert strong.psnr < 18 and strong.wiener_psnr is not None and strong.wiener_psnr < 18
    # Who has the images recognises them under noise that hides what they show.
    assert strong.top1 is not None and strong.likelihood_top1 is not None
    assert strong.likelihood_top1 > strong.top1
    assert weak.likelihood_top1_uploads == 1
    assert strong.likelihood_top1_uploads is not None and strong.likelihood_top1_uploads > 0.3


def test_nothing_is_reached_from_data_that_do_not_depend_on_the_images() -> None:
    result = reached(unrelated)
    blind = -10 * (X - smooth_images(300, seed=1).mean(0)).square().flatten(1).mean(1).log10().mean()
    assert abs(result.psnr - float(blind)) < 0.5
    assert result.top1 is not None and result.top1 <= 0.15
    assert result.likelihood_top1 is not None and result.likelihood_top1 <= 0.15
    assert result.likelihood_top1_uploads is not None and result.likelihood_top1_uploads <= 0.15


def test_batches_are_simulated_in_their_size() -> None:
    sizes: set[int] = set()

    def degrade(x: Tensor, generator: torch.Generator) -> Tensor:
        sizes.add(x.shape[1])
        return x + 0.05 * torch.randn(x.shape, generator=generator)

    result = reached(degrade, X.view(10, 4, 3, 8, 8), Y.view(10, 4))
    assert sizes == {4} and result.psnr > 22 and result.likelihood_top1_uploads is None


@pytest.mark.processes
def test_a_resumed_training_has_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, save = tmp_path / "a.state.robust.safetensors", TrainingState.save

    def save_and_stop(self: TrainingState, *args: object) -> None:
        save(self, *args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            reached(noisy(0.3), resume=state)
    assert reached(noisy(0.3), resume=state) == reached(noisy(0.3))
    with pytest.raises(DataError, match="differs in settings"):
        reached(noisy(0.3), resume=state, settings=replace(QUICK, epochs=3))


def test_a_training_that_diverges_says_so_and_costs_no_result() -> None:
    diverged = reached(noisy(1.0), settings=replace(QUICK, lr=1e18))
    assert diverged == replace(reached(noisy(1.0)), psnr=None, top1=None)
    assert diverged == from_robust_from_json(asdict(diverged))
    assert "by a network: its training diverged (Wiener filter" in from_robust_text(diverged)


def test_bad_input_raises() -> None:
    observation = Observation(tiny_task(), tiny_task().parameters(), torch.zeros(40, tiny_task().size), 1)
    with pytest.raises(DataError, match="public_images = 63: expected at least 64"):
        estimate_from_robust(simulator_of(noisy(1.0), count=63), observation, X, X, Y, settings=QUICK)
    without = simulator_of(noisy(1.0))
    without = replace(without, protect=lambda x, y, seed: SimulatedUploads([torch.zeros(len(x), 1)], None))
    with pytest.raises(DataError, match="this defence makes no robust data"):
        estimate_from_robust(without, observation, X, X, Y, settings=QUICK)
    for field, value in (("epochs", 0), ("width", 4), ("draws", 0)):
        with pytest.raises(SettingError, match=field):
            RobustEstimation(**{field: value})  # type: ignore[arg-type]


def small_sample(count: int) -> tuple[Tensor, Tensor]:
    """Images of the sample with 12×12 pixels, which metrics of the pixels need at least."""
    sample = load_sample()
    images = torch.nn.functional.avg_pool2d(sample.images[:count, :, :24, :24], 2)
    return images, sample.labels[:count]


def test_an_audit_measures_it_for_defences_that_make_robust_data(tmp_path: Path) -> None:
    images, labels = small_sample(64 + 3)
    x, y = images[:3], labels[:3]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 10))
    task, settings = Task(model, example=x), replace(QUICK, epochs=1)
    plans = [
        Plan.of(
            task,
            x,
            y,
            defense=defense,
            attack=InvertingGradients(iterations=1),
            metrics=["identification"],
            pool=(images[3:], labels[3:]),
            from_robust=settings,
        )
        for defense in ("none", make_defense("refiner:iterations=1"))
    ]
    stages: set[str] = set()
    undefended, defended = audit_all(
        plans, tmp_path, control=False, on_progress=lambda stage, done, total: stages.add(stage)
    )
    assert undefended.from_robust is None and defended.from_robust is not None
    assert "from robust" in stages
    assert AuditResult.from_json(defended.to_json()).from_robust == defended.from_robust
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}
    assert defended.settings["from robust"] == {"epochs": 1, "batch": 20, "lr": 3e-3, "width": 8, "draws": 1}
    with pytest.raises(SettingError, match="from_robust = 1: expected True or False"):
        audit(task, x, y, from_robust=1)  # type: ignore[arg-type]


def test_the_command_prints_it_once_for_each_defence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RobustEstimation, "for_device", lambda device: replace(QUICK, epochs=1))
    images, labels = small_sample(64 + 1)
    pixels = images.mul(255).byte().permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "small.npz", images=pixels, labels=labels.numpy())
    words = ["audit", "--out", str(tmp_path), "--data", str(tmp_path / "small.npz"), "--model", "mlp"]
    words += ["--defense", "refiner", "--attack", "inverting", "--attack", "inverting:lr=0.2"]
    words += ["--iterations", "1", "--victims", "1", "--public-images", "64"]
    result = CliRunner().invoke(app, [*words, "--from-robust", "--no-control"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert text.count("from x*, the robust data themselves") == 1
    assert "Wiener filter" in text and "% from x* and" in text
    saved = [AuditResult.load(file) for file in tmp_path.glob("*.json")]
    assert len(saved) == 2 and sum(audit.from_robust is not None for audit in saved) == 1
    assert not list(tmp_path.glob("*.safetensors"))
