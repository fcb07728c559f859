"""Observations: uploads and labels that fit the model, and nothing that is not granted."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from refiner.attacks import InvertingGradients, Observation, ThreatModel
from refiner.core import Task
from refiner.core.update import make_update
from refiner.defenses import NoDefense
from refiner.errors import DataError, RefinerError, SettingError, ThreatModelError
from refiner.models import LeNet


def altered(task: Task, victims: tuple[Tensor, Tensor], change: str) -> dict[str, Tensor]:
    tensors = dict(NoDefense().protect(task, *victims).tensors)
    if change == "missing":
        del tensors["head.bias"]
    elif change == "extra":
        tensors["other.weight"] = torch.zeros(3, 2)
    else:
        tensors["head.bias"] = torch.zeros(3, 7)
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing head.bias"),
        ("extra", "unexpected other.weight"),
        ("shape", r"head.bias has shape \[7\], expected \[10\]"),
    ],
)
def test_an_upload_of_another_model_raises(
    change: str, message: str, task: Task, victims: tuple[Tensor, Tensor]
) -> None:
    update = make_update(altered(task, victims, change), samples=1, defense="none", settings={})
    with pytest.raises(DataError, match=message):
        Observation.of(task, update)


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(3), torch.zeros(2, 1).long(), torch.full((3, 1), 10), torch.full((3, 1), -1), [1, 2, 3]],
)
def test_labels_that_do_not_fit_raise(labels: Any, task: Task, victims: tuple[Tensor, Tensor]) -> None:
    update = NoDefense().protect(task, *victims)
    with pytest.raises(DataError, match="labels"):
        Observation.of(task, update, labels=labels)


def test_an_observation_copies_the_models_parameters(task: Task, victims: tuple[Tensor, Tensor]) -> None:
    model = LeNet(input_shape=task.input_shape)
    task = Task(model, example=victims[0][0])
    observation = Observation.of(task, NoDefense().protect(task, *victims))
    before = observation.parameters["head.bias"].clone()
    with torch.no_grad():
        model.head.bias.add_(1)
    assert torch.equal(observation.parameters["head.bias"], before)


def test_observations_of_different_victims_raise(
    observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    other_task = Task(LeNet(input_shape=observation.task.input_shape), example=victims[0][0])
    other = Observation.of(other_task, NoDefense().protect(other_task, *victims))
    attack = InvertingGradients(iterations=1)
    with pytest.raises(DataError, match="same task"):
        attack.reconstruct([observation, other])
    with pytest.raises(DataError, match="same victims"):
        attack.reconstruct([observation, replace(observation, gradient=observation.gradient[:2])])
    with pytest.raises(DataError, match="1 and of 2 samples"):
        attack.reconstruct([observation, replace(observation, samples=2)])
    with pytest.raises(DataError, match="at least one"):
        attack.reconstruct([])


def test_every_missing_capability_is_named() -> None:
    with pytest.raises(ThreatModelError, match=r"x needs generator and labels.*generator=True, labels=True"):
        ThreatModel().check({"labels", "generator"}, "x")
    ThreatModel(labels=True, generator=True).check({"labels", "generator"}, "x")


def changed(observation: Observation, name: str, value: Tensor | None) -> dict[str, Tensor]:
    """The model's parameters with one removed or replaced."""
    rest = {key: t for key, t in observation.parameters.items() if key != name}
    return rest if value is None else {**rest, name: value}


WRONG: dict[str, tuple[Callable[[Observation], dict[str, Any]], str]] = {
    "not a task": (lambda o: {"task": o.task.model}, "task = LeNet: expected a Task"),
    "not a tensor": (lambda o: {"gradient": [1.0]}, r"gradient = list: expected a tensor"),
    "one row": (lambda o: {"gradient": o.gradient[0]}, r"gradient = \[\d+\]: expected shape \[V, \d+\]"),
    "another size": (
        lambda o: {"gradient": o.gradient[:, 1:]},
        r"gradient = \[3, \d+\]: expected shape \[V, \d+\], V ≥ 1, a value for every parameter",
    ),
    "no victims": (lambda o: {"gradient": o.gradient[:0]}, r"gradient = \[0, \d+\]: expected shape"),
    "integers": (
        lambda o: {"gradient": o.gradient.long()},
        "gradient = torch.int64: expected floats of 16, 32 or 64 bits",
    ),
    "NaN": (
        lambda o: {"gradient": o.gradient.index_fill(1, torch.tensor(5), torch.nan)},
        "gradient: contains NaN or infinity",
    ),
    "infinity": (
        lambda o: {"gradient": o.gradient.index_fill(0, torch.tensor(1), -torch.inf)},
        "gradient: contains NaN or infinity",
    ),
    "no samples": (lambda o: {"samples": 0}, "samples = 0: expected an integer ≥ 1"),
    "fraction of a sample": (lambda o: {"samples": 0.5}, "samples = 0.5: expected an integer ≥ 1"),
    "bool for samples": (lambda o: {"samples": True}, "samples = True: expected an integer ≥ 1"),
    "no mapping": (
        lambda o: {"parameters": list(o.parameters.values())},
        "parameters = list: expected a mapping",
    ),
    "a parameter missing": (
        lambda o: {"parameters": changed(o, "head.bias", None)},
        "parameters: missing head.bias",
    ),
    "an unexpected parameter": (
        lambda o: {"parameters": changed(o, "other", torch.zeros(2))},
        "parameters: unexpected other",
    ),
    "a parameter of another shape": (
        lambda o: {"parameters": changed(o, "head.bias", torch.zeros(7))},
        r"parameters: head.bias has shape \[7\], expected \[10\]",
    ),
    "labels of another shape": (
        lambda o: {"labels": torch.zeros(3, dtype=torch.long)},
        r"labels: expected torch.int64 of shape \[3, 1\]",
    ),
    "labels of fewer victims": (
        lambda o: {"labels": torch.zeros(2, 1, dtype=torch.long)},
        r"labels: expected torch.int64 of shape \[3, 1\]",
    ),
    "labels of other samples": (
        lambda o: {"labels": torch.zeros(3, 1, dtype=torch.long), "samples": 2},
        r"labels: expected torch.int64 of shape \[3, 2\]",
    ),
    "labels that are floats": (
        lambda o: {"labels": torch.zeros(3, 1)},
        r"labels: expected torch.int64 of shape \[3, 1\]",
    ),
    "label too high": (
        lambda o: {"labels": torch.tensor([[0], [10], [1]])},
        r"labels = 10: expected values in \[0, 9\]",
    ),
    "label too low": (
        lambda o: {"labels": torch.tensor([[0], [-1], [1]])},
        r"labels = -1: expected values in \[0, 9\]",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_observation_made_by_hand_raises(wrong: str, observation: Observation) -> None:
    change, message = WRONG[wrong]
    arguments = {field.name: getattr(observation, field.name) for field in fields(observation)} | change(
        observation
    )
    for make in (lambda: Observation(**arguments), lambda: replace(observation, **change(observation))):
        with pytest.raises(DataError, match=f"^{message}") as caught:
            make()
        assert "\n" not in str(caught.value)


def test_a_valid_observation_made_by_hand(observation: Observation, victims: tuple[Tensor, Tensor]) -> None:
    by_hand = Observation(observation.task, observation.parameters, observation.gradient, 1, victims[1])
    assert by_hand.victims == 3
    assert replace(by_hand, gradient=observation.gradient.repeat(4, 1), labels=None).victims == 12


class ScalarReads(TorchDispatchMode):
    """Counts reads of single numbers: on a GPU each is a synchronisation."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_checking_a_gradient_synchronises_once(observation: Observation) -> None:
    with ScalarReads() as reads:
        replace(observation)
    assert reads.count == 1


def test_parameters_in_another_order_raise(observation: Observation) -> None:
    reordered = dict(reversed(observation.parameters.items()))
    with pytest.raises(DataError, match=r"parameters: expected them in the order of task\.names"):
        replace(observation, parameters=reordered)


@pytest.mark.parametrize(
    ("observations", "threat", "message"),
    [
        ("update", None, "observations = Update: expected an Observation or a list of them"),
        (["update"], None, "observations = list: expected an Observation"),
        (None, "labels", "threat = 'labels': expected a ThreatModel"),
    ],
)
def test_arguments_of_another_type_raise(
    observations: Any, threat: Any, message: str, task: Task, victims: tuple[Tensor, Tensor]
) -> None:
    update = NoDefense().protect(task, *victims)
    arguments = {None: Observation.of(task, update), "update": update}
    argument = [update] if isinstance(observations, list) else arguments[observations]
    with pytest.raises(RefinerError, match=message):
        InvertingGradients(iterations=1).reconstruct(argument, threat=threat)


def test_a_capability_must_be_a_bool() -> None:
    with pytest.raises(SettingError, match=r"^labels = 'no': expected"):
        ThreatModel(labels="no")  # type: ignore[arg-type]


def test_observations_with_different_labels_raise(task: Task, victims: tuple[Tensor, Tensor]) -> None:
    observation = Observation.of(task, NoDefense().protect(task, *victims), labels=victims[1])
    cases = (
        (replace(observation, labels=None), "some contain labels"),
        (replace(observation, labels=9 - victims[1]), "differ"),
    )
    for other, message in cases:
        with pytest.raises(DataError, match=message):
            InvertingGradients(iterations=1).reconstruct(
                [observation, other], threat=ThreatModel(labels=True)
            )
