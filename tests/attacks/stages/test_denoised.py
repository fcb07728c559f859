"""The denoiser after another attack: what it adds, batches, resuming, and the text of a chain."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.attacks.small_learning import (
    SIDE,
    error_of,
    observe,
    planted,
    simulator_of,
    small_task,
    smooth_images,
)
from torch import Tensor

from refiner.attacks import (
    Attack,
    Denoised,
    InvertingGradients,
    Observation,
    Reconstruction,
    RunOptions,
    ThreatModel,
    make_attack,
)
from refiner.attacks.learning.network_training import TrainingState
from refiner.errors import DataError, SettingError, ThreatModelError

TASK = small_task()
X = smooth_images(6, seed=0)[:, None]
Y = torch.tensor([[0], [1], [2], [3], [0], [1]])


@dataclass(frozen=True)
class Poor(Attack):
    """An attack that reads images off planted uploads: with stripes, inverted, in reversed order."""

    name: ClassVar[str] = "poor"
    runs: ClassVar[list[int]] = []

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        (observation,) = observations
        self.runs.append(observation.victims)
        size = 3 * SIDE**2
        x = observation.gradient[:, : observation.samples * size].view(-1, observation.samples, 3, SIDE, SIDE)
        stripes = 0.8 * (torch.arange(SIDE) % 2).float()
        options.on_progress(1, 1)
        return Reconstruction(
            (1.5 - x.flip(1) + stripes).clamp(-2, 3),
            torch.zeros(x.shape[:2], dtype=torch.long),
            x.new_zeros(len(x)),
            torch.zeros(len(x), dtype=torch.bool),
            0.0,
        )


def plain(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Uploads that contain the images themselves."""
    uploads = torch.zeros(len(x), TASK.size)
    uploads[:, : x[0].numel()] = x.flatten(1)
    return uploads


QUICK = Denoised(Poor(), images=96, epochs=3, batch=16, width=8)


def restored(attack: Attack = QUICK, **options: object) -> Reconstruction:
    simulator = simulator_of(TASK, plain, count=128)
    return attack.reconstruct(observe(TASK, plain, X, Y), simulator=simulator, **options)  # type: ignore[arg-type]


def test_the_errors_of_the_other_attack_are_removed() -> None:
    poor = Poor().reconstruct(observe(TASK, plain, X, Y)).x
    result = restored()
    assert error_of(result.x, X) < 0.02 * error_of(poor, X)
    assert result.x.shape == X.shape and 0 <= float(result.x.min()) <= float(result.x.max()) <= 1
    assert not bool(result.diverged.any())


def test_batches_are_matched_before_the_training() -> None:
    x, y = X.view(3, 2, 3, SIDE, SIDE), Y.view(3, 2)
    result = QUICK.reconstruct(observe(TASK, plain, x, y), simulator=simulator_of(TASK, plain, count=128))
    poor = Poor().reconstruct(observe(TASK, plain, x, y)).x
    assert error_of(result.x, x.flip(1)) < 0.1 * error_of(poor, x.flip(1))


def test_the_other_attack_sees_the_victims_first() -> None:
    """So that its draws for them are those that it has alone."""
    simulator = simulator_of(TASK, planted(TASK), count=64)
    uploads = observe(TASK, planted(TASK), X, Y)
    inner = InvertingGradients(iterations=3)
    alone = inner.reconstruct(uploads)
    seen: list[Reconstruction] = []

    @dataclass(frozen=True)
    class Recorded(InvertingGradients):
        def run(self, *args: object) -> Reconstruction:
            seen.append(super().run(*args))  # type: ignore[arg-type]
            return seen[-1]

    result = Denoised(Recorded(iterations=3), images=32, epochs=1, width=8).reconstruct(
        uploads, simulator=simulator
    )
    assert len(seen[0].x) == 6 + 32
    torch.testing.assert_close(seen[0].x[:6], alone.x, rtol=1e-3, atol=1e-3)
    assert torch.equal(result.labels, alone.labels)


def test_an_interrupted_run_resumes_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = replace(QUICK, attack=InvertingGradients(iterations=2), images=32)
    simulator = simulator_of(TASK, planted(TASK), count=64)
    uploads = observe(TASK, planted(TASK), X, Y)
    uninterrupted = attack.reconstruct(uploads, simulator=simulator)
    state = tmp_path / "a.safetensors"
    save = TrainingState.save

    def save_and_stop(self: TrainingState, *args: object) -> None:
        save(self, *args)  # type: ignore[arg-type]
        if args[-1] == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            attack.reconstruct(uploads, simulator=simulator, resume=state)
    assert len(list(tmp_path.iterdir())) == 2
    calls: list[tuple[int, int]] = []
    resumed = attack.reconstruct(
        uploads, simulator=simulator, resume=state, on_progress=lambda *call: calls.append(call)
    )
    assert torch.equal(resumed.x, uninterrupted.x) and calls[-1][0] == calls[-1][1]
    # Only the result is left, and it is read without another run.
    assert list(tmp_path.iterdir()) == [state]
    again = attack.reconstruct(uploads, simulator=simulator, resume=state)
    assert torch.equal(again.x, resumed.x) and list(tmp_path.iterdir()) == [state]
    assert torch.equal(again.labels, resumed.labels)


def test_a_finished_run_does_not_run_the_other_attack_again(tmp_path: Path) -> None:
    Poor.runs.clear()
    first, second = (restored(resume=tmp_path / "a.safetensors") for _ in range(2))
    assert torch.equal(first.x, second.x) and Poor.runs == [6 + 96]


def test_a_diverged_training_says_so() -> None:
    result = restored(replace(QUICK, lr=1e18))
    assert result.diverged.tolist() == [True] * 6
    assert bool(result.x.isfinite().all()) and 0 <= float(result.x.min()) <= float(result.x.max()) <= 1


def test_it_follows_any_attack_as_text() -> None:
    attack = make_attack("inverting:input_range=(-2,3)+denoiser:images=100,width=16", iterations=7)
    assert isinstance(attack, Denoised) and attack.name == "inverting+denoiser"
    settings = attack.settings()
    assert settings["inverting.iterations"] == 7 and settings["inverting.input_range"] == (-2, 3)
    assert settings["denoiser.images"] == 100 and settings["denoiser.width"] == 16
    with pytest.raises(DataError, match="only denoiser and adaptive can follow another attack"):
        make_attack("inverting+dlg")
    with pytest.raises(DataError, match="unknown"):
        make_attack("inverting+denoise")


def test_it_needs_what_the_other_attack_needs_and_public_images() -> None:
    attack = make_attack("ggl+denoiser")
    assert attack.needs_for(TASK) == {"generator", "public", "defense"}
    with pytest.raises(ThreatModelError, match=r"poor\+denoiser needs defense"):
        restored(threat=ThreatModel(defense=False))
    with pytest.raises(DataError, match="public_images = 31: expected at least 32"):
        QUICK.reconstruct(observe(TASK, plain, X, Y), simulator=simulator_of(TASK, plain, count=31))


@pytest.mark.parametrize(
    ("field", "value"),
    [("attack", "inverting"), ("images", 8), ("epochs", 0), ("batch", 0), ("lr", -1), ("width", 12)],
)
def test_settings_out_of_range_raise(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"{field} = "):
        Denoised(**{field: value})  # type: ignore[arg-type]


def test_inputs_that_are_no_images_raise() -> None:
    from refiner.core import Task

    task = Task(torch.nn.Linear(4, 2), example=torch.rand(1, 4))
    with pytest.raises(DataError, match=r"input shape = \[4\]: expected images \[C, H, W\]"):
        Denoised().check(task)
