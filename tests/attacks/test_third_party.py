"""A third-party attack written against public names only: it runs, is described and can be audited."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import refiner
from refiner.attacks import (
    Attack,
    Distance,
    GradientMatching,
    Guess,
    MatchingAttack,
    Observation,
    Reconstruction,
    RunOptions,
    ThreatModel,
    infer_labels,
)
from refiner.data import load_sample
from refiner.metrics import psnr


@dataclass(frozen=True)
class LinearInversion(Attack):
    """Inverts a linear first layer: a row of its weight's gradient is the bias' gradient times the input.

    Phong, Aono, Hayashi, Wang and Moriai, "Privacy-Preserving Deep Learning via Additively Homomorphic
    Encryption", IEEE TIFS 2018.
    """

    name: ClassVar[str] = "linear-inversion"
    reference: ClassVar[str] = (
        "Phong, Aono, Hayashi, Wang and Moriai, Privacy-Preserving Deep Learning via Additively Homomorphic "
        "Encryption, IEEE TIFS 2018"
    )

    def check(self, task: refiner.Task) -> None:
        shapes = [task.shapes[name] for name in task.layers[0].parameters]
        if [len(shape) for shape in shapes] != [2, 1]:
            raise refiner.DataError(field="model", value=task.layers[0].name, expected="a linear first layer")

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        first = observations[0]
        self.check(first.task)
        gradient = torch.stack([o.gradient for o in observations]).mean(0)
        weight_size, bias_size = (first.task.shapes[n].numel() for n in first.task.layers[0].parameters)
        weight, bias, _ = gradient.tensor_split([weight_size, weight_size + bias_size], dim=1)
        row = bias.abs().argmax(1, keepdim=True)
        rows = weight.view(len(weight), bias_size, -1)
        x = rows.take_along_dim(row[..., None], 1) / bias.take_along_dim(row, 1)[..., None]
        x = (
            x.view(-1, 1, *first.task.input_shape)
            .clamp(0, 1)
            .expand(-1, first.samples, *first.task.input_shape)
        )
        none = torch.zeros(len(x), device=x.device)
        return Reconstruction(x, infer_labels(*observations), none, none.bool(), seconds=0.0)


@dataclass(frozen=True)
class BrightnessMatching(MatchingAttack):
    """Euclidean gradient matching with a prior that penalises deviation from a mean brightness."""

    name: ClassVar[str] = "brightness-matching"

    iterations: int = 40
    brightness: float = 0.5

    def matching(self) -> GradientMatching:
        return GradientMatching(Distance("relative"), (self.prior,), iterations=self.iterations)

    def prior(self, guess: Guess) -> Tensor:
        return (guess.x.flatten(1).mean(1) - self.brightness).square()


@pytest.fixture
def perceptron() -> refiner.Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.GELU(), nn.Linear(64, 10))
    return refiner.Task(model, example=load_sample().images[:1])


def test_a_third_party_attack_reconstructs_real_images(perceptron: refiner.Task) -> None:
    sample = load_sample()
    x, y = sample.images[:8, None], sample.labels[:8, None]
    update = refiner.NoDefense().protect(perceptron, x, y)
    result = LinearInversion().reconstruct(Observation.of(perceptron, update))
    assert torch.equal(result.labels, y)
    assert float(psnr(result.x[:, 0], x[:, 0]).min()) > 60


def test_a_third_party_attack_can_be_audited(perceptron: refiner.Task) -> None:
    sample = load_sample()
    result = refiner.audit(
        perceptron, sample.images[:4], sample.labels[:4], defense="none", attack=LinearInversion()
    )
    assert result.verdict.level == "visible"


def test_a_third_party_attack_rejects_a_task(task: refiner.Task, observation: Observation) -> None:
    with pytest.raises(refiner.DataError, match=r"^model = 'body\.0': expected a linear first layer$"):
        LinearInversion().reconstruct(observation)


def test_a_third_party_matching_attack_lowers_its_objective(small_observation: Observation) -> None:
    first, last = (BrightnessMatching(iterations=n).reconstruct(small_observation) for n in (1, 30))
    assert bool((last.objective < 0.5 * first.objective).all())
