"""The MLP: parameter counts, shapes and settings."""

import pytest
import torch

from refiner.errors import DataError, SettingError
from refiner.models import MLP
from refiner.models.activations import ACTIVATIONS


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 789_258), ({"hidden": 64}, 197_322), ({"classes": 7, "input_shape": (1, 28, 28)}, 202_759)],
)
def test_parameter_count(settings: dict[str, object], count: int) -> None:
    assert sum(p.numel() for p in MLP(**settings).parameters()) == count  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_runs(name: str) -> None:
    scores = MLP(5, (1, 8, 9), hidden=4, activation=name)(torch.rand(3, 1, 8, 9))
    assert scores.shape == (3, 5) and bool(scores.isfinite().all())


@pytest.mark.parametrize(
    "settings",
    [{"hidden": 0}, {"hidden": 2.5}, {"classes": 1}, {"input_shape": (3, 4, 4)}, {"activation": ""}],
)
def test_wrong_settings_name_the_field(settings: dict[str, object]) -> None:
    (field,) = settings
    with pytest.raises(SettingError, match=rf"^{field} = .*: expected .*$"):
        MLP(**settings)  # type: ignore[arg-type]


def test_images_of_another_shape_are_an_error() -> None:
    with pytest.raises(DataError, match=r"expected \[batch, 3, 32, 32\]$"):
        MLP(hidden=2)(torch.zeros(2, 3, 31, 32))
