"""RecUP stays within its budget, misleads classifiers that it does not know, and fails closed."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refiner import DataError, NoDefense, SettingError, Task, UnsupportedModelError
from refiner.core.noise import NoiseSource
from refiner.defenses import RecUP, make_defense
from refiner.defenses.attribute_zoo import AttributeZoo, revealed_input

INPUTS, CLASSES, BATCH = 20, 5, 3
# The attribute shifts a few of the pixels; labels are independent of it.
SHIFT = torch.zeros(INPUTS)
SHIFT[:6] = 0.5


@cache
def images(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.arange(count) % 2
    x = torch.rand(count, INPUTS, generator=generator) / 2 + values[:, None] * SHIFT
    return x, torch.randint(0, CLASSES, (count,), generator=generator), values


@cache
def task() -> Task:
    torch.manual_seed(0)
    return Task(
        nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, CLASSES)), torch.rand(2, INPUTS)
    )


@cache
def fitted(seed: int = 0) -> RecUP:
    return RecUP.fit(task(), *images(300, 1), batch=BATCH, clients=120, members=3, seed=seed)


def clients() -> tuple[Tensor, Tensor, Tensor]:
    x, y, values = images(180, 2)
    order = values.argsort(stable=True)
    shape = (60, BATCH)
    return x[order].view(*shape, INPUTS), y[order].view(shape), values[order].view(shape)[:, 0]


def accuracy(judge: RecUP, defense: RecUP | NoDefense) -> float:
    """How often the classifiers of `judge` are right about the uploads of `defense`."""
    x, y, values = clients()
    update = defense.protect(task(), x, y).tensors
    inputs = revealed_input(update["2.weight"], update["2.bias"]).mean
    logits = judge.zoo.logits(inputs, range(len(judge.zoo.members)))
    return float(((logits > 0) == (values > 0)).float().mean())


def test_a_gradient_reveals_the_mean_input_of_the_last_layer() -> None:
    x, y = torch.rand(4, 1, INPUTS), torch.tensor([[0], [1], [2], [3]])
    update = NoDefense().protect(task(), x, y).tensors
    revealed = revealed_input(update["2.weight"], update["2.bias"])
    hidden = task().model.get_submodule("1")(task().model.get_submodule("0")(x[:, 0]))
    torch.testing.assert_close(revealed.mean, hidden.detach(), rtol=1e-4, atol=1e-5)
    # A change by the shares of rows changes the mean input by exactly that much, at the stated cost.
    change = torch.randn(4, 16)
    moved = revealed.present[..., None] * change[:, None]
    again = revealed_input(update["2.weight"] + moved, update["2.bias"]).mean
    torch.testing.assert_close(again, revealed.mean + change, rtol=1e-4, atol=1e-4)
    length = revealed.cost[:, 0] * change.norm(dim=1)
    torch.testing.assert_close(moved.flatten(1).norm(dim=1), length, rtol=1e-4, atol=1e-5)


@pytest.mark.processes
def test_the_classifiers_are_good_and_the_perturbation_misleads_others() -> None:
    defense, judge = fitted(), fitted(seed=1)
    assert defense.zoo.accuracy > 0.9 and accuracy(judge, NoDefense()) > 0.9
    assert accuracy(judge, defense.with_budget(0.5)) < 0.3
    assert accuracy(judge, defense.with_budget(0.0)) == accuracy(judge, NoDefense())


def test_the_boundary_is_between_both_values(tmp_path: Path) -> None:
    x, y, _ = clients()
    boundary = RecUP(file=str(fitted().save(tmp_path / "zoo")), aim="boundary", budget=1.0)
    update = boundary.protect(task(), x, y).tensors
    inputs = revealed_input(update["2.weight"], update["2.bias"]).mean
    members = range(len(boundary.zoo.members))
    plain = NoDefense().protect(task(), x, y).tensors
    before = boundary.zoo.logits(revealed_input(plain["2.weight"], plain["2.bias"]).mean, members)
    after = boundary.zoo.logits(inputs, members)
    assert after.abs().mean() < 0.5 * before.abs().mean()


@pytest.mark.parametrize("budget", [0.01, 0.1])
def test_the_perturbation_is_within_the_budget_and_in_the_last_layer(budget: float) -> None:
    x, y, _ = clients()
    plain, sent = (d.protect(task(), x, y) for d in (NoDefense(), fitted().with_budget(budget)))
    ratio = (sent.flat() - plain.flat()).norm(dim=1) / plain.flat().norm(dim=1)
    assert bool((ratio <= budget * 1.001).all()) and float(ratio.mean()) > 0.5 * budget
    unchanged = [n for n in plain.names if torch.equal(plain.tensors[n], sent.tensors[n])]
    assert unchanged == ["0.weight", "0.bias", "2.bias"]


def test_a_file_keeps_the_classifiers(tmp_path: Path) -> None:
    path = fitted().save(tmp_path / "zoo.safetensors")
    x, y, _ = clients()
    again = make_defense(f"recup:file={path},budget=0.1")
    assert isinstance(again, RecUP) and again.zoo.accuracy == fitted().zoo.accuracy
    expected = fitted().with_budget(0.1)
    assert torch.equal(again.protect(task(), x, y).flat(), expected.protect(task(), x, y).flat())
    assert again.settings() == expected.settings() and str(path) not in str(again.settings())
    assert again.with_budget(0.2).file == again.file


def test_without_classifiers_nothing_is_uploaded_and_the_line_says_how_to_fit() -> None:
    for make in (lambda: make_defense("recup"), lambda: make_defense("recup:budget=0.1+gq")):
        with pytest.raises(SettingError, match=r"^file = None: recup needs .*; fit them with `refiner recup"):
            make()
    with pytest.raises(SettingError, match="recup needs fitted attribute classifiers"):
        RecUP().protect(task(), *clients()[:2])


def test_another_model_or_file_is_one_line(tmp_path: Path) -> None:
    other = Task(nn.Linear(INPUTS, CLASSES), torch.rand(2, INPUTS))
    with pytest.raises(DataError, match=r"task: recup was fitted to a model whose last layer has 5 classes"):
        fitted().protect(other, *clients()[:2])
    broken = tmp_path / "zoo.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"zoo\.safetensors: no attribute classifiers \("):
        make_defense(f"recup:file={broken}")
    with pytest.raises(SettingError, match="file = 3: expected the path of a file"):
        make_defense("recup", file=3)
    no_bias = Task(nn.Linear(INPUTS, CLASSES, bias=False), torch.rand(2, INPUTS))
    with pytest.raises(UnsupportedModelError, match="last layer is not linear with a bias"):
        RecUP.fit(no_bias, *images(300, 1))


def test_too_few_people_are_one_line() -> None:
    x, y, values = images(300, 1)
    cases: list[tuple[Tensor, dict[str, Any], str]] = [
        (values * 0, {}, "attribute = 0: expected at least two groups, such as people, whose attribute is 1"),
        (
            values,
            {"batch": 200},
            "attribute = '.* images': expected images of both values for batches of 200",
        ),
        (values[:4], {}, r"attribute = .*: expected torch.int64 \[300\]"),
    ]
    for attribute, settings, message in cases:
        with pytest.raises(DataError, match=message):
            RecUP.fit(task(), x, y, attribute, **settings)


def test_a_gradient_without_negative_bias_stays_as_it_is() -> None:
    zero = {name: torch.zeros(2, *shape) for name, shape in task().shapes.items()}
    sent = fitted().transform(zero, NoiseSource(), BATCH)
    assert not any(bool(value.any()) for value in sent.values())
    assert isinstance(fitted().zoo, AttributeZoo)
