"""A model with its normalisation inside: the same gradient, and images in 0..1 outside."""

import pytest
import torch
from torch import nn

import refiner
from refiner.audit import Plan
from refiner.errors import DataError, SettingError
from refiner.models import MLP, LeNet, Normalized, build_model

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalize(x: torch.Tensor) -> torch.Tensor:
    return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def test_the_gradient_is_that_of_the_model_on_normalised_images() -> None:
    model, x, y = LeNet(), torch.rand(4, 3, 32, 32), torch.arange(4)
    update = refiner.backward(
        Normalized(model, MEAN, STD), nn.functional.cross_entropy, x, y, refiner.NoDefense()
    ).update
    inside = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    nn.functional.cross_entropy(model(normalize(x)), y).backward()
    assert set(update.tensors) == {f"model.{name}" for name in inside}
    for name, p in model.named_parameters():
        torch.testing.assert_close(inside[name], p.grad, rtol=1e-4, atol=1e-6)
        assert p.grad is not None and p.grad.abs().max() > 0


def test_an_audit_reconstructs_images_in_0_to_1() -> None:
    x, y = refiner.load_sample().images[:2, :, :12, :12], torch.tensor([3, 1])
    task = refiner.Task(Normalized(MLP(input_shape=(3, 12, 12), hidden=32), MEAN, STD), example=x)
    result = refiner.audit(
        task, x, y, defense="none", attack="inverting:iterations=25", metrics=[], control=False
    )
    assert result.means["psnr"].value > 17
    model = result.settings["model"]
    assert isinstance(model, dict) and model["name"] == "MLP on normalised inputs"


def test_other_statistics_are_another_audit() -> None:
    x, y, model = torch.rand(1, 3, 12, 12), torch.tensor([1]), MLP(input_shape=(3, 12, 12))
    stems = {
        Plan.of(task, x, y, defense="none", attack="dlg").stem
        for mean in (MEAN, (0.5,))
        if (task := refiner.Task(Normalized(model, mean, STD), example=x))
    }
    assert len(stems) == 2


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((), STD, r"mean = \(\): expected a list of numbers"),
        (MEAN, (1.0, 0.0, 1.0), r"std = 0.0: expected a number in \(0,"),
        ((float("nan"),) * 3, STD, "mean = nan: expected a number"),
        (MEAN, (1.0, 1.0), "expected 3 numbers, as many as in mean"),
        ("0.5", STD, "mean = '0.5': expected a list of numbers"),
    ],
)
def test_wrong_statistics_are_an_error(mean: tuple[float, ...], std: tuple[float, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Normalized(LeNet(), mean, std)


def test_the_number_of_channels_is_checked() -> None:
    with pytest.raises(DataError, match=r"has 3 numbers, but the inputs have the shape \[1, 32, 32\]"):
        refiner.Task(Normalized(LeNet(input_shape=(1, 32, 32)), MEAN, STD), example=torch.rand(2, 1, 32, 32))
    with pytest.raises(DataError, match="can be given only together with std"):
        build_model("lenet", mean=MEAN)
