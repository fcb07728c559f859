"""Models by name."""

import pytest
import torch

from refiner.errors import DataError, SettingError
from refiner.models import MODELS, make_model

SMALL: dict[str, dict[str, object]] = {"vit": {"width": 12, "depth": 1, "heads": 3}}


def test_the_built_in_models() -> None:
    assert list(MODELS) == ["lenet", "mlp", "resnet10", "resnet18", "resnet34", "vit"]


@pytest.mark.parametrize("name", MODELS)
def test_every_name_builds(name: str) -> None:
    model = make_model(name, classes=7, input_shape=(1, 8, 8), **SMALL.get(name, {}))
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 7)


def test_settings_can_be_part_of_the_name() -> None:
    model = make_model("resnet10:norm=batch,activation=gelu", norm="group", input_shape=(3, 8, 8))
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())
    with pytest.raises(SettingError, match=r"^setting of lenet = 'norm': expected one of 'activation'$"):
        make_model("lenet:norm=batch")
    with pytest.raises(DataError, match=r"^model = 'lenet:batch': expected NAME:setting=value"):
        make_model("lenet:batch")


@pytest.mark.parametrize("name", ["lenet", "mlp", "resnet10", "vit"])
def test_same_seed_same_weights(name: str) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn.append(make_model(name, **SMALL.get(name, {})).state_dict())
    assert all(torch.equal(value, drawn[1][key]) for key, value in drawn[0].items())


@pytest.mark.parametrize("name", ["resnet", "LeNet", "", None, 18])
def test_a_typo_lists_the_names(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_model(name)
    expected = "'lenet', 'mlp', 'resnet10', 'resnet18', 'resnet34', 'vit'"
    assert str(caught.value) == f"model = {name!r}: expected one of {expected}"


def test_an_unknown_setting_lists_the_known() -> None:
    with pytest.raises(SettingError) as caught:
        make_model("resnet18", nrom="batch")
    assert str(caught.value) == "setting of resnet18 = 'nrom': expected one of 'norm', 'activation', 'groups'"


@pytest.mark.parametrize("name", MODELS)
def test_a_name_python_knows_is_no_setting(name: str) -> None:
    with pytest.raises(SettingError, match=f"^setting of {name} = 'self'"):
        make_model(name, **{"self": 1})  # type: ignore[arg-type]
