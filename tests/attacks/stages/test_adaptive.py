"""The paper's adaptive attack: what is attacked lies at the distance that uploads have on average."""

import pytest
import torch

from refiner.attacks import (
    Adaptive,
    InvertingGradients,
    Observation,
    SimulatedUploads,
    Simulator,
    make_attack,
)
from refiner.attacks.stages.adaptive import Start, _utility_weights
from refiner.core import Task, flatten, gradients
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.errors import SettingError
from refiner.models import LeNet

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


def test_it_follows_another_attack_by_name() -> None:
    attack = make_attack("idlg:lr=0.5+adaptive:start=zero")
    assert attack.name == "idlg+adaptive" and attack.settings()["adaptive.start"] == "zero"
    with pytest.raises(SettingError, match=r"start = 'far': expected"):
        make_attack("inverting+adaptive:start=far")
