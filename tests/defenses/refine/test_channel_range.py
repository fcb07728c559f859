"""Refiner and attacks with a range for each channel: the same as with 0..1 on a model that normalises."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import refiner
from refiner.attacks import Observation, ThreatModel, make_attack
from refiner.core import Task
from refiner.core.input_range import check_input_range, from_unit_range, to_unit_range
from refiner.data import load_sample
from refiner.defenses import NoDefense, Refiner, make_defense
from refiner.errors import DataError, SettingError
from refiner.models import Normalized, normalized_range

MEAN, STD = (torch.tensor(each).double() for each in ([0.49, 0.48, 0.45], [0.25, 0.5, 0.1]))
RANGE = normalized_range(MEAN.tolist(), STD.tolist())
SECRET = bytes(range(32))
# In double precision, so that a search takes the same steps; of 256 levels, like all images.
X, Y = (load_sample().images[:4, :, ::4, ::4].double() * 255).round() / 255, load_sample().labels[:4]
NORMALISED = (X - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 10)).double()


@pytest.fixture(scope="module")
def task(model: nn.Module) -> Task:
    return Task(model, example=NORMALISED)


def plain_gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradient of the mean cross-entropy, by autograd alone."""
    loss = nn.functional.cross_entropy(model(x), y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_an_upload_is_the_gradient_of_the_images_with_noise_in_their_channels_ranges(
    model: nn.Module,
) -> None:
    defense = Refiner(search="never", secret=SECRET, input_range=RANGE)
    plain = Refiner(search="never", secret=SECRET)
    noisy = defense.noisy(NORMALISED)
    # By hand: the noise of the images in 0..1, in every channel as many times larger as its range.
    torch.testing.assert_close(noisy - NORMALISED, (plain.noisy(X) - X) / STD.view(3, 1, 1))
    expected = plain_gradient(model, noisy, Y)
    model.zero_grad()
    refiner.backward(model, nn.functional.cross_entropy, NORMALISED, Y, defense)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"search": "always", "iterations": 4, "error_feedback": False},
        {
            "start": "blend",
            "alpha": 0.5,
            "beta": 1.0,
            "privacy": "mse",
            "solver": "descent",
            "clamp": True,
            "iterations": 3,
        }
        | {"search": "always", "error_feedback": False},
        {"start": "centred", "alpha": 1.0, "privacy": "mse", "beta": 0.1, "iterations": 3}
        | {"search": "always", "error_feedback": False},
    ],
    ids=["natural", "blend", "centred"],
)
def test_a_search_equals_that_on_a_model_which_normalises(
    settings: dict[str, Any], model: nn.Module, task: Task
) -> None:
    inside = Task(Normalized(model, MEAN.tolist(), STD.tolist()), example=X)
    expected = Refiner(**settings).protection(inside, X, Y, seed=3)
    found = Refiner(**settings, input_range=RANGE).protection(task, NORMALISED, Y, seed=3)
    assert found.robust is not None and expected.robust is not None
    robust = to_unit_range(found.robust, RANGE)
    torch.testing.assert_close(robust, expected.robust, rtol=1e-5, atol=1e-6)
    for name, gradient in found.update.tensors.items():
        other = expected.update.tensors[f"model.{name}"]
        torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["inverting:signed=false", "gradinversion:restarts=2", "idlg", "dlg"])
def test_an_attack_equals_that_on_a_model_which_normalises(name: str, model: nn.Module, task: Task) -> None:
    inside = Task(Normalized(model, MEAN.tolist(), STD.tolist()), example=X)
    found = []
    for each, x, settings in ((inside, X, {}), (task, NORMALISED, {"input_range": RANGE})):
        update = NoDefense().protect(each, x[:2, None], Y[:2, None])
        attack = make_attack(name, iterations=1 if "dlg" in name else 3, **settings)
        observation = Observation.of(each, update)
        found.append(attack.reconstruct(observation, threat=ThreatModel(), seed=0).x)
    low, high = (from_unit_range(torch.full((3, 1, 1), v), RANGE) for v in (0.0, 1.0))
    assert bool(((found[1] >= low - 1e-5) & (found[1] <= high + 1e-5)).all())
    torch.testing.assert_close(to_unit_range(found[1], RANGE), found[0], rtol=1e-4, atol=1e-5)


def test_a_model_for_0_to_1_is_made_from_a_range(model: nn.Module) -> None:
    inside = Normalized.from_range(model, RANGE)
    torch.testing.assert_close(inside(X), model(NORMALISED), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(Normalized.from_range(model, (-1.0, 1.0))(X), model(2 * X - 1))


def test_ranges_of_tables_are_those_of_their_features() -> None:
    linear = nn.Linear(2, 3)
    x = torch.tensor([[0.0, 80.0], [1.0, 20.0]])
    ranges = ((0.0, 0.0), (1.0, 100.0))
    defense = Refiner(start="centred", alpha=1.0, search="never", secret=SECRET, input_range=ranges)
    change = (defense.noisy(x) - x).abs()
    assert float(change[:, 0].max()) <= 0.5 and 1 < float(change[:, 1].max()) <= 50
    defense.protect(Task(linear, example=x), x, torch.tensor([0, 2]))


def test_data_outside_of_their_channel_are_rejected(task: Task) -> None:
    defense = Refiner(search="never", input_range=RANGE)
    # Within the range of the last channel, but not of the second.
    outside = NORMALISED.clone()
    outside[0, 1, 0, 0] = 3.0
    with pytest.raises(DataError, match=r"x: channel 1 in \[.*, 3\], outside input_range = \(\(") as caught:
        defense.protect(task, outside, Y)
    assert "\n" not in str(caught.value)
    # A range that was computed with other rounding is accepted.
    lows, highs = ((-MEAN / STD), (1 - MEAN) / STD)
    rounded = tuple(round(v, 3) for v in lows.tolist()), tuple(round(v, 3) for v in highs.tolist())
    Refiner(search="never", input_range=rounded).protect(task, NORMALISED, Y)


@pytest.mark.parametrize(
    "value",
    [
        ((0.0, 0.0), (1.0,)),
        ((0.0, 2.0), (1.0, 1.0)),
        ((), ()),
        (0.0, (1.0,)),
        ((0.0,), 1.0),
        (("a",), (1.0,)),
        ((float("nan"),), (1.0,)),
        ([0.0], [1.0]),
        ((0.0, (1.0,)), (1.0, (2.0,))),
        (1.0, 0.0),
        "01",
        None,
    ],
)
def test_wrong_ranges_are_one_line(value: Any) -> None:
    for make in (check_input_range, lambda value: Refiner(input_range=value)):
        with pytest.raises(SettingError, match=r"^input_range = ") as caught:
            make(value)
        assert "\n" not in str(caught.value)


def test_a_range_with_another_number_of_channels_is_one_line(task: Task) -> None:
    two = ((0.0, 0.0), (1.0, 1.0))
    expected = r"expected 3 lows and highs, for inputs of shape \[3, 8, 8\]"
    defense = Refiner(search="never", input_range=two)
    for call in (
        lambda: defense.protect(task, X, Y),
        lambda: defense.noisy(X),
        lambda: task.with_unit_inputs(two),
        lambda: make_attack("dlg", input_range=two).check(task),
        lambda: make_attack("inverting", input_range=two).check(task),
    ):
        with pytest.raises(SettingError, match=expected):
            call()


def test_ranges_can_be_written_as_text() -> None:
    made = make_defense("refiner:search=never,input_range=((0,0,-1),(1,1,1))")
    assert made.settings()["input_range"] == ((0, 0, -1), (1, 1, 1))
