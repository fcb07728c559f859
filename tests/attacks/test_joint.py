"""Labels that are searched: probabilities that the loss takes, pixels that keep to their box."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.attacks.conftest import QUICK
from torch import Tensor, nn

from refiner.attacks import DLG, IDLG, InvertingGradients, Observation, ThreatModel
from refiner.attacks.base import Run
from refiner.attacks.joint import JointLabels
from refiner.attacks.parametrisation import Pixels
from refiner.core import Task, flatten, gradients
from refiner.core.noise import NoiseSource
from refiner.defenses import NoDefense
from refiner.errors import DataError


def test_the_truth_matches(task: Task, victims: tuple[Tensor, Tensor], seen: Observation) -> None:
    """The victim's own pixels with a score that leaves no doubt have the gradient that was seen."""
    x, y = victims
    z = torch.cat([x.flatten(2), 100 * F.one_hot(y, task.classes).float()], dim=2)
    joint, unknown = JointLabels(), torch.zeros_like(y)
    assert torch.equal(joint.images(task, z, unknown), x)
    found = gradients(task, joint.images(task, z, unknown), joint.labels(task, z, unknown))
    torch.testing.assert_close(flatten(found), seen.gradient)


def test_a_start_is_that_of_pixels_with_scores_behind_it(task: Task) -> None:
    ids, unknown = torch.arange(400)[:, None], torch.zeros(400, 1, dtype=torch.long)
    joint, source = JointLabels(), NoiseSource(seed=3)
    z = joint.start(task, source, ids, torch.float32)
    pixels = Pixels().start(task, source, ids, torch.float32)
    assert torch.equal(joint.images(task, z, unknown), pixels)
    scores = z[..., -task.classes :]
    assert abs(float(scores.mean())) < 0.05 and abs(float(scores.std()) - 1) < 0.05
    torch.testing.assert_close(joint.labels(task, z, unknown), scores.softmax(-1))


def test_the_box_holds_pixels_and_no_scores(task: Task) -> None:
    z = torch.full((2, 1, math.prod(task.input_shape) + task.classes), 7.0)
    boxed = JointLabels().boxed(task, z)
    assert bool((boxed[..., : -task.classes] == 1).all()) and bool((boxed[..., -task.classes :] == 7).all())
    assert torch.equal(JointLabels(Pixels(bounded=False)).boxed(task, z), z)
    unknown = torch.zeros(2, 1, dtype=torch.long)
    assert float(JointLabels(Pixels(bounded=False)).shown(task, z, unknown).max()) == 1


def test_it_goes_with_every_search(light: Observation, victims: tuple[Tensor, Tensor]) -> None:
    engine = replace(InvertingGradients(iterations=60).engine(), parametrisation=JointLabels())
    unknown = torch.zeros_like(victims[1])
    first, last = (replace(engine, iterations=n).run([light], unknown, Run()) for n in (1, 60))
    assert bool((last.objective < 0.5 * first.objective).all())


def nll(scores: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(scores.log_softmax(1), labels)


def weighted(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, weight=torch.arange(1.0, 1.0 + scores.shape[1]))


@pytest.mark.parametrize(("loss", "told"), [(nll, "raises RuntimeError"), (weighted, "another value")])
def test_losses_that_take_labels_only(loss: object, told: str, task: Task) -> None:
    other = Task(task.model, torch.zeros(1, *task.input_shape), loss)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"loss: expected one that takes probabilities.*{told}") as caught:
        DLG().check(other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(reduction="sum")]
)
def test_losses_that_take_both(loss: nn.Module, task: Task) -> None:
    other = Task(task.model, torch.zeros(1, *task.input_shape), loss)
    DLG().check(other)
    labels = torch.tensor([1, 2])
    certain = nn.functional.one_hot(labels, task.classes).float()
    scores = torch.randn(2, task.classes)
    torch.testing.assert_close(other.loss_function(scores, certain), other.loss_function(scores, labels))


@pytest.mark.usefixtures("few_steps")
def test_granted_labels_are_used(light: Observation, victims: tuple[Tensor, Tensor]) -> None:
    known = replace(light, labels=victims[1])
    threat = ThreatModel(labels=True)
    joint, fixed = (attack(iterations=1).reconstruct(known, threat=threat) for attack in (DLG, IDLG))
    assert torch.equal(joint.labels, victims[1]) and torch.equal(joint.x, fixed.x)


def test_a_model_whose_last_layer_tells_no_labels(victims: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    x, y = victims
    width = x[0].numel()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(width, 20), nn.Sigmoid(), nn.Linear(20, 10), nn.Unflatten(1, (1, 10))
    )
    model = nn.Sequential(*model, nn.Conv1d(1, 1, 3, padding=1), nn.Flatten())
    task = Task(model, example=x[0])
    seen = Observation.of(task, NoDefense().protect(task, x, y))
    with pytest.raises(DataError, match="last layer"):
        QUICK["idlg"].reconstruct(seen)
    assert torch.equal(DLG(iterations=2).reconstruct(seen).labels, y)


def test_batches(light: Observation, victims: tuple[Tensor, Tensor]) -> None:
    task, (x, y) = light.task, (t.transpose(0, 1) for t in victims)
    seen = Observation.of(task, NoDefense().protect(task, x, y))
    found = DLG(iterations=3).reconstruct(seen)
    assert found.x.shape == x.shape and sorted(found.labels[0].tolist()) == sorted(y[0].tolist())
