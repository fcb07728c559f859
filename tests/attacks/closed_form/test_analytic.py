"""Analytic reconstruction: exact on an MLP, and one line where a model does not allow it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from refiner.attacks import AnalyticReconstruction, InvertingGradients, Observation
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense, make_defense
from refiner.errors import DataError
from refiner.metrics import psnr
from refiner.models import MLP, LeNet

ANALYTIC = AnalyticReconstruction()


@pytest.fixture(scope="module")
def victims() -> tuple[Tensor, Tensor]:
    sample = load_sample()
    return sample.images[:5, None], sample.labels[:5, None]


@pytest.fixture(scope="module")
def mlp(victims: tuple[Tensor, Tensor]) -> Task:
    torch.manual_seed(0)
    return Task(MLP(hidden=16), example=victims[0][0])


def test_a_single_image_of_an_mlp_is_exact(mlp: Task, victims: tuple[Tensor, Tensor]) -> None:
    observation = Observation.of(mlp, NoDefense().protect(mlp, *victims))
    result = ANALYTIC.reconstruct(observation)
    # The highest PSNR that is reported: no pixel is off by more than rounding.
    assert psnr(result.x[:, 0], victims[0][:, 0]).tolist() == [100] * 5
    assert float((result.x - victims[0]).abs().max()) < 1e-5
    assert torch.equal(result.labels, victims[1]) and not bool(result.diverged.any())
    assert float(result.objective.max()) < 1e-10
    # Gradient matching on the same uploads is far from exact.
    matched = InvertingGradients(iterations=10).reconstruct(observation)
    assert float(psnr(matched.x[:, 0], victims[0][:, 0]).mean()) < 40


def test_the_closed_form_is_least_squares_over_rows_and_uploads(
    mlp: Task, victims: tuple[Tensor, Tensor]
) -> None:
    """With noise the answer is the x that minimises ‖gW − gb ⊗ x‖² over all rows of all uploads."""
    noise = make_defense("dp-gaussian:magnitude=0.001")
    observed = [Observation.of(mlp, noise.protect(mlp, *victims, seed=seed)) for seed in range(3)]
    result = ANALYTIC.reconstruct(observed)
    parts = [mlp.unflatten(o.gradient) for o in observed]
    weight = torch.cat([part["body.weight"] for part in parts], dim=1).double()
    bias = torch.cat([part["body.bias"] for part in parts], dim=1).double()
    expected = torch.linalg.lstsq(bias[..., None], weight).solution[:, 0].clamp(0, 1)
    torch.testing.assert_close(result.x.flatten(1).double(), expected, rtol=1e-4, atol=1e-5)
    single = ANALYTIC.reconstruct(observed[0])
    truth = victims[0][:, 0]
    assert float(psnr(result.x[:, 0], truth).mean()) > float(psnr(single.x[:, 0], truth).mean())
    assert float(single.objective.min()) > 0 and float(single.objective.max()) < 1


def test_uploads_without_a_bias_gradient_say_so(mlp: Task, victims: tuple[Tensor, Tensor]) -> None:
    observation = Observation.of(mlp, NoDefense().protect(mlp, *victims))
    gradient = observation.gradient.clone()
    gradient[0] = 0
    gradient[1] = 3e38
    result = ANALYTIC.reconstruct(replace(observation, gradient=gradient))
    assert result.diverged.tolist()[0] and bool(result.x.isfinite().all())
    assert not bool(result.objective.isnan().any())
    assert torch.equal(result.x[2:], ANALYTIC.reconstruct(observation).x[2:])


class Centred(nn.Module):
    """Subtracts a constant before its linear layer: the layer's input is not the image."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1) - 0.5)
        return out


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (LeNet(), "body.0"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 10, bias=False)), "1"),
        (nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(768, 10)), "2"),
        (Centred(), "linear"),
    ],
)
def test_models_with_another_first_layer_are_one_line(model: nn.Module, layer: str) -> None:
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with pytest.raises(DataError) as caught:
        ANALYTIC.check(task)
    message = str(caught.value)
    assert message.startswith(f"model = {layer!r}: expected a fully connected first layer with a bias")
    assert "\n" not in message


def test_a_bare_linear_model_on_flat_inputs_is_exact() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(3, 1, 7), torch.tensor([[1], [0], [1]])
    task = Task(nn.Linear(7, 2), example=x[0])
    result = ANALYTIC.reconstruct(Observation.of(task, NoDefense().protect(task, x, y)))
    torch.testing.assert_close(result.x, x)


def test_batches_of_several_samples_are_one_line(mlp: Task, victims: tuple[Tensor, Tensor]) -> None:
    x, y = victims[0][:4].view(2, 2, 3, 32, 32), victims[1][:4].view(2, 2)
    observation = Observation.of(mlp, NoDefense().protect(mlp, x, y))
    with pytest.raises(DataError, match="batch = 2: expected 1: of more samples analytic would return a"):
        ANALYTIC.reconstruct(observation)
