"""Labels optimised with the pixels: class probabilities that the loss accepts, pixels in their range."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.attacks.conftest import QUICK
from torch import Tensor, nn

from refiner.attacks import DLG, IDLG, InvertingGradients, Observation, ThreatModel
from refiner.attacks.matching.joint_labels import JointLabels
from refiner.attacks.matching.parametrisation import Pixels
from refiner.attacks.run_options import RunOptions
from refiner.core import Task, flatten, gradients
from refiner.core.noise import NoiseSource
from refiner.defenses import NoDefense
from refiner.errors import DataError, ThreatModelError


def test_the_truth_has_the_observed_gradient(
    task: Task, victims: tuple[Tensor, Tensor], observation: Observation
) -> None:
    """The victim's own pixels with large logits for its label."""
    x, y = victims
    z = torch.cat([x.flatten(2), 100 * F.one_hot(y, task.classes).float()], dim=2)
    joint, ignored = JointLabels(), torch.zeros_like(y)
    assert torch.equal(joint.images(task, z, ignored), x)
    result = gradients(task, joint.images(task, z, ignored), joint.labels(task, z, ignored))
    torch.testing.assert_close(flatten(result), observation.gradient)


def test_initial_variables_are_those_of_pixels_followed_by_normal_logits(task: Task) -> None:
    ids, ignored = torch.arange(400)[:, None], torch.zeros(400, 1, dtype=torch.long)
    joint, source = JointLabels(), NoiseSource(seed=3)
    z = joint.initial(task, source, ids, torch.float32)
    pixels = Pixels().initial(task, source, ids, torch.float32)
    assert torch.equal(joint.images(task, z, ignored), pixels)
    scores = z[..., -task.classes :]
    assert abs(float(scores.mean())) < 0.05 and abs(float(scores.std()) - 1) < 0.05
    torch.testing.assert_close(joint.labels(task, z, ignored), scores.softmax(-1))


def test_pixels_are_clamped_and_logits_are_not(task: Task) -> None:
    z = torch.full((2, 1, math.prod(task.input_shape) + task.classes), 7.0)
    projected = JointLabels().project(task, z)
    assert bool((projected[..., : -task.classes] == 1).all()) and bool(
        (projected[..., -task.classes :] == 7).all()
    )
    assert torch.equal(JointLabels(Pixels(bounded=False)).project(task, z), z)
    ignored = torch.zeros(2, 1, dtype=torch.long)
    assert float(JointLabels(Pixels(bounded=False)).result(task, z, ignored).max()) == 1


def test_labels_are_optimised_by_adam_too(
    small_observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    matching = replace(InvertingGradients(iterations=60).matching(), parametrisation=JointLabels())
    ignored = torch.zeros_like(victims[1])
    first, last = (
        replace(matching, iterations=n).run([small_observation], ignored, RunOptions()) for n in (1, 60)
    )
    assert bool((last.objective < 0.5 * first.objective).all())


def nll(scores: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(scores.log_softmax(1), labels)


def weighted(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, weight=torch.arange(1.0, 1.0 + scores.shape[1]))


@pytest.mark.parametrize(("loss", "problem"), [(nll, "raises RuntimeError"), (weighted, "another value")])
def test_losses_that_accept_labels_only_raise(loss: object, problem: str, task: Task) -> None:
    other = Task(task.model, torch.zeros(1, *task.input_shape), loss)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"loss: expected one that takes probabilities.*{problem}") as caught:
        DLG().check(other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(reduction="sum")]
)
def test_losses_that_accept_probabilities_pass(loss: nn.Module, task: Task) -> None:
    other = Task(task.model, torch.zeros(1, *task.input_shape), loss)
    DLG().check(other)
    labels = torch.tensor([1, 2])
    one_hot = nn.functional.one_hot(labels, task.classes).float()
    scores = torch.randn(2, task.classes)
    torch.testing.assert_close(other.loss_function(scores, one_hot), other.loss_function(scores, labels))


@pytest.mark.usefixtures("few_lbfgs_steps")
def test_granted_labels_are_used(small_observation: Observation, victims: tuple[Tensor, Tensor]) -> None:
    known = replace(small_observation, labels=victims[1])
    threat = ThreatModel(labels=True)
    joint, fixed = (attack(iterations=1).reconstruct(known, threat=threat) for attack in (DLG, IDLG))
    assert torch.equal(joint.labels, victims[1]) and torch.equal(joint.x, fixed.x)


def test_dlg_needs_no_last_layer_that_reveals_labels(victims: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    x, y = victims
    width = x[0].numel()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(width, 20), nn.Sigmoid(), nn.Linear(20, 10), nn.Unflatten(1, (1, 10))
    )
    model = nn.Sequential(*model, nn.Conv1d(1, 1, 3, padding=1), nn.Flatten())
    task = Task(model, example=x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    with pytest.raises(ThreatModelError, match="last layer"):
        QUICK["idlg"].reconstruct(observation)
    assert torch.equal(DLG(iterations=2).reconstruct(observation).labels, y)


def test_batches_are_attacked(small_observation: Observation, victims: tuple[Tensor, Tensor]) -> None:
    task, (x, y) = small_observation.task, (t.transpose(0, 1) for t in victims)
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    result = DLG(iterations=2).reconstruct(observation)
    assert result.x.shape == x.shape and sorted(result.labels[0].tolist()) == sorted(y[0].tolist())
