"""What an attacker may see: uploads that fit the model, labels that fit them, no more than is granted."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from refiner.attacks import InvertingGradients, Observation, ThreatModel
from refiner.core import Task
from refiner.core.update import seal
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
        ("missing", "lacks head.bias"),
        ("extra", "has besides other.weight"),
        ("shape", r"head.bias has shape \[7\], expected \[10\]"),
    ],
)
def test_an_upload_of_another_model(
    change: str, message: str, task: Task, victims: tuple[Tensor, Tensor]
) -> None:
    update = seal(altered(task, victims, change), samples=1, defense="none", settings={})
    with pytest.raises(DataError, match=message):
        Observation.of(task, update)


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(3), torch.zeros(2, 1).long(), torch.full((3, 1), 10), torch.full((3, 1), -1), [1, 2, 3]],
)
def test_labels_that_do_not_fit(labels: Any, task: Task, victims: tuple[Tensor, Tensor]) -> None:
    update = NoDefense().protect(task, *victims)
    with pytest.raises(DataError, match="labels"):
        Observation.of(task, update, labels=labels)


def test_an_observation_keeps_the_models_state(task: Task, victims: tuple[Tensor, Tensor]) -> None:
    model = LeNet(input_shape=task.input_shape)
    own = Task(model, example=victims[0][0])
    seen = Observation.of(own, NoDefense().protect(own, *victims))
    before = seen.parameters["head.bias"].clone()
    with torch.no_grad():
        model.head.bias.add_(1)
    assert torch.equal(seen.parameters["head.bias"], before)


def test_observations_that_do_not_belong_together(seen: Observation, victims: tuple[Tensor, Tensor]) -> None:
    other = Task(LeNet(input_shape=seen.task.input_shape), example=victims[0][0])
    foreign = Observation.of(other, NoDefense().protect(other, *victims))
    attack = InvertingGradients(iterations=1)
    with pytest.raises(DataError, match="same task"):
        attack.reconstruct([seen, foreign])
    with pytest.raises(DataError, match="same victims"):
        attack.reconstruct([seen, replace(seen, gradient=seen.gradient[:2])])
    with pytest.raises(DataError, match="1 and of 2 samples"):
        attack.reconstruct([seen, replace(seen, samples=2)])
    with pytest.raises(DataError, match="at least one"):
        attack.reconstruct([])


def test_every_missing_grant_is_named() -> None:
    with pytest.raises(ThreatModelError, match=r"x needs generator and labels.*generator=True, labels=True"):
        ThreatModel().check({"labels", "generator"}, "x")
    ThreatModel(labels=True, generator=True).check({"labels", "generator"}, "x")


def changed(seen: Observation, name: str, value: Tensor | None) -> dict[str, Tensor]:
    """The model's state with one parameter left out or in another form."""
    rest = {key: t for key, t in seen.parameters.items() if key != name}
    return rest if value is None else {**rest, name: value}


WRONG: dict[str, tuple[Callable[[Observation], dict[str, Any]], str]] = {
    "no task": (lambda o: {"task": o.task.model}, "task = LeNet: expected a Task"),
    "no tensor": (lambda o: {"gradient": [1.0]}, r"gradient = list: expected a tensor"),
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
        "gradient: holds NaN or infinity",
    ),
    "infinity": (
        lambda o: {"gradient": o.gradient.index_fill(0, torch.tensor(1), -torch.inf)},
        "gradient: holds NaN or infinity",
    ),
    "no samples": (lambda o: {"samples": 0}, "samples = 0: expected an integer ≥ 1"),
    "half a sample": (lambda o: {"samples": 0.5}, "samples = 0.5: expected an integer ≥ 1"),
    "a flag for samples": (lambda o: {"samples": True}, "samples = True: expected an integer ≥ 1"),
    "parameters that are none": (
        lambda o: {"parameters": list(o.parameters.values())},
        "parameters = list: expected a mapping",
    ),
    "a parameter missing": (
        lambda o: {"parameters": changed(o, "head.bias", None)},
        "parameters: lacks head.bias",
    ),
    "a parameter besides": (
        lambda o: {"parameters": changed(o, "other", torch.zeros(2))},
        "parameters: has besides other",
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
    "too high a label": (
        lambda o: {"labels": torch.tensor([[0], [10], [1]])},
        r"labels = 10: expected values in \[0, 9\]",
    ),
    "too low a label": (
        lambda o: {"labels": torch.tensor([[0], [-1], [1]])},
        r"labels = -1: expected values in \[0, 9\]",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_observation_made_by_hand_is_checked(wrong: str, seen: Observation) -> None:
    change, told = WRONG[wrong]
    whole = {field.name: getattr(seen, field.name) for field in fields(seen)} | change(seen)
    for make in (lambda: Observation(**whole), lambda: replace(seen, **change(seen))):
        with pytest.raises(DataError, match=f"^{told}") as caught:
            make()
        assert "\n" not in str(caught.value)


def test_a_sound_observation_made_by_hand(seen: Observation, victims: tuple[Tensor, Tensor]) -> None:
    by_hand = Observation(seen.task, seen.parameters, seen.gradient, 1, victims[1])
    assert by_hand.victims == 3
    assert replace(by_hand, gradient=seen.gradient.repeat(4, 1), labels=None).victims == 12


class Looks(TorchDispatchMode):
    """Counts the numbers that are read: on a GPU each is a wait."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_gradient_is_looked_at_once(seen: Observation) -> None:
    with Looks() as looks:
        replace(seen)
    assert looks.count == 1


def test_parameters_in_another_order(seen: Observation) -> None:
    """Their gradients would be compared with those of others."""
    turned = dict(reversed(seen.parameters.items()))
    with pytest.raises(DataError, match="parameters: expected them in the order of the task's names"):
        replace(seen, parameters=turned)


@pytest.mark.parametrize(
    ("seen", "threat", "told"),
    [
        ("update", None, "seen = Update: expected an Observation, or several in a list"),
        (["update"], None, "seen = list: expected an Observation"),
        (None, "labels", "threat = 'labels': expected a ThreatModel"),
    ],
)
def test_what_is_no_observation_or_threat(
    seen: Any, threat: Any, told: str, task: Task, victims: tuple[Tensor, Tensor]
) -> None:
    update = NoDefense().protect(task, *victims)
    given = Observation.of(task, update) if seen is None else update if seen == "update" else [update]
    with pytest.raises(RefinerError, match=told):
        InvertingGradients(iterations=1).reconstruct(given, threat=threat)


def test_a_grant_is_yes_or_no() -> None:
    with pytest.raises(SettingError, match=r"^labels = 'no': expected"):
        ThreatModel(labels="no")  # type: ignore[arg-type]


def test_uploads_with_other_labels_are_not_of_the_same_victims(
    task: Task, victims: tuple[Tensor, Tensor]
) -> None:
    seen = Observation.of(task, NoDefense().protect(task, *victims), labels=victims[1])
    cases = (
        (replace(seen, labels=None), "some hold labels"),
        (replace(seen, labels=9 - victims[1]), "differ"),
    )
    for other, told in cases:
        with pytest.raises(DataError, match=told):
            InvertingGradients(iterations=1).reconstruct([seen, other], threat=ThreatModel(labels=True))
