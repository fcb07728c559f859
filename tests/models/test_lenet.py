"""LeNet: layout, parameter counts, shapes and settings."""

import pytest
import torch
from torch import nn

from refiner.errors import DataError, SettingError
from refiner.models import LeNet
from refiner.models.activations import ACTIVATIONS


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("classes", "shape", "count"),
    [(10, (3, 32, 32), 15_826), (100, (3, 32, 32), 85_036), (10, (1, 28, 28), 13_426)],
)
def test_parameter_count(classes: int, shape: tuple[int, int, int], count: int) -> None:
    assert parameters(LeNet(classes, shape)) == count


def test_the_layout_is_that_of_dlg() -> None:
    convolutions = [m for m in LeNet().modules() if isinstance(m, nn.Conv2d)]
    assert [m.stride[0] for m in convolutions] == [2, 2, 1]
    assert {(m.out_channels, m.kernel_size, m.padding) for m in convolutions} == {(12, (5, 5), (2, 2))}
    assert LeNet().head.in_features == 768


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 8, 8), (4, 9, 15), (3, 64, 64)])
@pytest.mark.parametrize("classes", [2, 100])
def test_forward_shape(classes: int, shape: tuple[int, int, int]) -> None:
    assert LeNet(classes, shape)(torch.rand(3, *shape)).shape == (3, classes)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_runs(name: str) -> None:
    assert torch.isfinite(LeNet(activation=name)(torch.rand(2, 3, 32, 32))).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"classes": 1},
        {"classes": 10.0},
        {"classes": True},
        {"input_shape": (3, 32)},
        {"input_shape": (0, 32, 32)},
        {"input_shape": (3, 7, 32)},
        {"input_shape": (3, 32, 32.0)},
        {"input_shape": "3x3"},
        {"input_shape": 32},
        {"activation": "swish"},
        {"activation": None},
    ],
)
def test_wrong_settings_name_the_field(settings: dict[str, object]) -> None:
    (field,) = settings
    with pytest.raises(SettingError, match=rf"^{field} = .*: expected .*$"):
        LeNet(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 1, 32, 32), (2, 3, 32, 31)])
def test_images_of_another_shape_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"expected \[batch, 3, 32, 32\]$"):
        LeNet()(torch.zeros(shape))
