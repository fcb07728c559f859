"""ViT: parameter counts, shapes, attention against the fused one, initial values and settings."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from refiner.errors import DataError, SettingError
from refiner.models import ViT
from refiner.models.vit import Attention


def test_parameter_count() -> None:
    assert sum(p.numel() for p in ViT().parameters()) == 21_342_346


def test_the_parameter_count_equals_one_computed_by_hand() -> None:
    embed, token, position = 16 * 48 + 16, 16, 65 * 16
    block = 2 * 32 + (16 * 48 + 48) + (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16)
    expected = embed + token + position + 2 * block + 32 + (16 * 10 + 10)
    assert sum(p.numel() for p in ViT(width=16, depth=2, heads=2).parameters()) == expected


@pytest.mark.parametrize(
    ("classes", "shape", "patch"),
    [
        (10, (3, 32, 32), 4),
        (100, (1, 28, 28), 7),
        (2, (3, 8, 16), 8),
        (5, (4, 24, 12), 3),
        (10, (3, 8, 8), 1),
    ],
)
def test_forward_shape(classes: int, shape: tuple[int, int, int], patch: int) -> None:
    model = ViT(classes, shape, patch=patch, width=12, depth=2, heads=3)
    assert model(torch.rand(3, *shape)).shape == (3, classes)


def test_patches_are_a_strided_convolution() -> None:
    model, x = ViT(input_shape=(3, 8, 16), width=12, depth=1, heads=3), torch.rand(2, 3, 8, 16)
    weight = model.embed.weight.view(12, 3, 4, 4)
    expected = functional.conv2d(x, weight, model.embed.bias, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.embed(model._patches(x)), expected)


def test_attention_equals_the_fused_one() -> None:
    layer, x = Attention(width=12, heads=3).double(), torch.rand(2, 5, 12, dtype=torch.float64)
    query, key, value = (part.reshape(2, 5, 3, 4).transpose(1, 2) for part in layer.qkv(x).chunk(3, dim=-1))
    fused = functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(layer(x), layer.out(fused.transpose(1, 2).reshape(2, 5, 12)))


def test_positions_matter() -> None:
    model, x = ViT(width=12, depth=1, heads=3).double(), torch.rand(1, 3, 32, 32, dtype=torch.float64)
    assert (model(x) - model(x.flip(3))).abs().max() > 1e-9


def test_initial_values() -> None:
    model = ViT(depth=1)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert 0.018 < float(module.weight.detach().std()) < 0.022
            assert not module.bias.any()
    assert 0.018 < float(model.position.detach().std()) < 0.022
    assert 0.015 < float(model.token.detach().std()) < 0.025


@pytest.mark.parametrize(
    "settings",
    [
        {"classes": 1},
        {"input_shape": (3, 32)},
        {"patch": 5},
        {"patch": 0},
        {"patch": 64},
        {"width": 0},
        {"depth": 0},
        {"heads": 7},
        {"heads": 0},
        {"mlp_ratio": 0},
        {"mlp_ratio": 1.5},
    ],
)
def test_wrong_settings_name_the_field(settings: dict[str, object]) -> None:
    (field,) = settings
    with pytest.raises(SettingError, match=rf"^{field} = .*: expected .*$"):
        ViT(**settings)  # type: ignore[arg-type]


def test_images_of_another_shape_are_an_error() -> None:
    with pytest.raises(DataError, match=r"expected \[batch, 3, 32, 32\]$"):
        ViT(width=12, depth=1, heads=3)(torch.zeros(2, 3, 28, 28))
