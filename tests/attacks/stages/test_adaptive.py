"""The paper's adaptive attack: what is attacked lies at the distance that uploads have on average."""

from typing import ClassVar

import pytest
import torch

from refiner.attacks import (
    Adaptive,
    InvertingGradients,
    Observation,
    Reconstruction,
    RunOptions,
    SimulatedUploads,
    Simulator,
    ThreatModel,
    make_attack,
)
from refiner.attacks.stages.adaptive import Start, _utility_weights
from refiner.core import Task, flatten, gradients
from refiner.data import load_sample
from refiner.defenses import NoDefense, make_defense
from refiner.errors import SettingError
from refiner.models import MLP, LeNet

SAMPLE = load_sample()
DEFENSE = make_defense("refiner")


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=SAMPLE.images[:1])


@pytest.mark.parametrize("start", ["near", "random", "zero"])
def test_the_attacked_gradient_is_as_far_from_the_upload_as_real_ones_are(task: Task, start: Start) -> None:
    def protect(x: torch.Tensor, y: torch.Tensor, seed: int) -> SimulatedUploads:
        return SimulatedUploads([DEFENSE.protect(task, x, y, seed=seed).flat()], None)

    simulator = Simulator(SAMPLE.images[40:72], SAMPLE.labels[40:72], protect)
    x, y = SAMPLE.images[:3, None], SAMPLE.labels[:3, None]
    observation = Observation.of(task, DEFENSE.protect(task, x, y, seed=9))
    attack = Adaptive(InvertingGradients(iterations=1), start=start, images=32)
    distance = attack._expected_distance(observation, simulator, seed=0)
    public = SAMPLE.images[40:72, None], SAMPLE.labels[40:72, None]
    real = flatten(gradients(task, *public))
    assert 0 < distance < 10 and len(real) == 32
    moved = attack._solved(observation, distance, torch.Generator().manual_seed(0))
    weights = _utility_weights(observation, observation.gradient)
    apart = (weights * (moved - observation.gradient).square()).sum(1)
    wanted = distance * (weights * observation.gradient.square()).sum(1)
    torch.testing.assert_close(apart, wanted, rtol=0.05, atol=0)
    result = attack.reconstruct(observation, simulator=simulator)
    assert result.x.shape == x.shape and bool(result.x.isfinite().all())


class Recorder(InvertingGradients):
    """Keeps what it is given to attack."""

    seen: ClassVar[list[torch.Tensor]] = []

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Keep the gradient, and attack."""
        self.seen.append(observations[0].gradient)
        return super().run(observations, threat, options)


def test_the_factor_scales_the_distance(task: Task) -> None:
    def protect(x: torch.Tensor, y: torch.Tensor, seed: int) -> SimulatedUploads:
        return SimulatedUploads([DEFENSE.protect(task, x, y, seed=seed).flat()], None)

    simulator = Simulator(SAMPLE.images[40:56], SAMPLE.labels[40:56], protect)
    observation = Observation.of(
        task, DEFENSE.protect(task, SAMPLE.images[:2, None], SAMPLE.labels[:2, None], seed=9)
    )
    for factor in (1.0, 4.0):
        Adaptive(Recorder(iterations=1), images=16, factor=factor).reconstruct(
            observation, simulator=simulator
        )
    weights = _utility_weights(observation, observation.gradient)
    near, far = ((weights * (seen - observation.gradient).square()).sum(1) for seen in Recorder.seen)
    torch.testing.assert_close(far, 4 * near, rtol=0.05, atol=0)
    with pytest.raises(SettingError, match="factor = -1"):
        make_attack("inverting+adaptive:factor=-1")


def test_without_a_defence_the_image_comes_back_exactly() -> None:
    torch.manual_seed(0)
    wide = Task(MLP(hidden=16), example=SAMPLE.images[:1])
    x, y = SAMPLE.images[:2, None], SAMPLE.labels[:2, None]

    def protect(x: torch.Tensor, y: torch.Tensor, seed: int) -> SimulatedUploads:
        return SimulatedUploads([NoDefense().protect(wide, x, y).flat()], None)

    found = make_attack("analytic+adaptive:images=16").reconstruct(
        Observation.of(wide, NoDefense().protect(wide, x, y)),
        simulator=Simulator(SAMPLE.images[40:56], SAMPLE.labels[40:56], protect),
    )
    assert float((found.x - x).square().mean().sqrt()) < 1e-3


def test_it_follows_another_attack_by_name() -> None:
    attack = make_attack("idlg:lr=0.5+adaptive:start=zero")
    assert attack.name == "idlg+adaptive" and attack.settings()["adaptive.start"] == "zero"
    with pytest.raises(SettingError, match=r"start = 'far': expected"):
        make_attack("inverting+adaptive:start=far")
