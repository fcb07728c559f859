"""ResNets: parameter counts, shapes, norms and settings."""

import pytest
import torch
from torch import nn

from refiner.errors import DataError, SettingError
from refiner.models import ResNet, make_model, resnet10


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(
    ("name", "count"), [("resnet10", 4_903_242), ("resnet18", 11_173_962), ("resnet34", 21_282_122)]
)
def test_parameter_count(name: str, count: int, norm: str) -> None:
    assert sum(p.numel() for p in make_model(name, norm=norm).parameters()) == count


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "resnet34"])
def test_layer_count(name: str) -> None:
    weighted = [m for m in make_model(name).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    shortcuts = [m for m in weighted if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(shortcuts) == 3
    assert len(weighted) - 3 == int(name.removeprefix("resnet"))


@pytest.mark.parametrize(
    ("classes", "shape"), [(10, (3, 32, 32)), (100, (1, 28, 28)), (2, (3, 8, 8)), (5, (4, 9, 17))]
)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_forward_shape(classes: int, shape: tuple[int, int, int], norm: str) -> None:
    assert resnet10(classes, shape, norm=norm)(torch.rand(2, *shape)).shape == (2, classes)


def test_stem_keeps_the_image_size() -> None:
    assert resnet10().stem(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    assert resnet10().stages(torch.zeros(1, 64, 32, 32)).shape == (1, 512, 4, 4)


def test_no_module_works_in_place() -> None:
    assert not any(getattr(module, "inplace", False) for module in resnet10().modules())


def test_with_group_norm_samples_are_independent() -> None:
    model, x = resnet10(input_shape=(3, 8, 8)), torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(model(x)[:1], model(x[:1]), atol=1e-5, rtol=1e-4)


def test_activation_and_groups_are_used() -> None:
    modules = list(resnet10(activation="silu", groups=8).modules())
    assert not any(isinstance(m, nn.ReLU) for m in modules)
    assert {m.num_groups for m in modules if isinstance(m, nn.GroupNorm)} == {8}


@pytest.mark.parametrize(
    "settings",
    [
        {"classes": 1},
        {"input_shape": (3, 4, 4)},
        {"norm": "layer"},
        {"activation": "Relu"},
        {"groups": 0},
        {"groups": 48},
        {"groups": 128},
        {"blocks": (1, 1, 1)},
        {"blocks": (1, 1, 1, 0)},
        {"blocks": "1111"},
        {"blocks": 4},
    ],
)
def test_wrong_settings_name_the_field(settings: dict[str, object]) -> None:
    (field,) = settings
    with pytest.raises(SettingError, match=rf"^{field} = .*: expected .*$"):
        ResNet(**{"blocks": (1, 1, 1, 1), **settings})  # type: ignore[arg-type]


def test_images_of_another_shape_are_an_error() -> None:
    with pytest.raises(DataError, match=r"expected \[batch, 3, 32, 32\]$"):
        resnet10()(torch.zeros(2, 3, 16, 16))
