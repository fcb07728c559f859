"""Labels from the last layer's gradient, for single samples and for batches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refiner.attacks.observation import Observation
from refiner.attacks.threat_model import ThreatModel
from refiner.errors import ThreatModelError


def infer_labels(*observations: Observation) -> Tensor:
    """Return the inferred labels of every victim, in ascending order.

    For one sample the gradient of the last bias is p − 1 at its label and p elsewhere, so that the label is
    its only negative entry (iDLG: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients",
    arXiv:2001.02610, 2020). For B samples the entry of class k is p̄_k − count_k / B, with p̄ the model's mean
    output; p̄ is taken as uniform, which holds for an untrained model and less so later.

    Args:
        observations: One or more uploads of the same victims; their gradients are averaged.

    Returns:
        Labels `[V, B]`.

    Raises:
        ThreatModelError: The last layer does not reveal labels.

    >>> from refiner.core import Task
    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 1, 3, 32, 32), torch.tensor([[7], [0], [4]])
    >>> task = Task(LeNet(), example=x[0])
    >>> infer_labels(Observation.of(task, NoDefense().protect(task, x, y))).flatten().tolist()
    [7, 0, 4]
    """
    class_grad = torch.stack([_class_gradient(observation) for observation in observations]).mean(0)
    samples = observations[0].samples
    if samples == 1:
        return class_grad.argmin(1, keepdim=True)
    return labels_in_shares(1 / class_grad.shape[1] - class_grad, samples)


def labels_in_shares(shares: Tensor, samples: int) -> Tensor:
    """Return labels in ascending order, as many of each class as its share says, by the largest remainders.

    Args:
        shares: How frequent each class is, up to a factor, `[V, classes]`; negative ones count as zero.
        samples: The labels of every victim, B.

    Returns:
        Labels `[V, B]`.

    >>> labels_in_shares(torch.tensor([[0.1, -0.2, 0.3]]), 4).tolist()
    [[0, 2, 2, 2]]
    """
    expected = shares.nan_to_num(0).clamp_min(1e-12)
    expected = expected * samples / expected.sum(1, keepdim=True)
    counts = expected.floor()
    remainder_rank = (expected - counts).argsort(1, descending=True).argsort(1)
    counts = counts + (remainder_rank < samples - counts.sum(1, keepdim=True))
    classes = torch.arange(shares.shape[1], device=shares.device)
    return torch.stack([classes.repeat_interleave(row.long()) for row in counts])


def known_labels(observations: Sequence[Observation], threat: ThreatModel) -> Tensor:
    """Return the labels of every victim: the granted ones, or else inferred ones.

    Args:
        observations: One or more uploads of the same victims.
        threat: The capabilities granted.

    Returns:
        Labels `[V, B]`.

    Raises:
        ThreatModelError: They are not granted, and the last layer does not reveal them.
    """
    granted = observations[0].labels
    return granted if threat.labels and granted is not None else infer_labels(*observations)


def _class_gradient(observation: Observation) -> Tensor:
    """∂loss/∂logit of every class, `[V, classes]`, from the last bias or, up to a factor, the last weight."""
    task = observation.task
    last = task.layers[-1].parameters
    bias = [name for name in last if task.shapes[name] == (task.classes,)]
    weight = [name for name in last if len(task.shapes[name]) == 2 and task.shapes[name][0] == task.classes]
    if not bias and not weight:
        raise ThreatModelError(
            f"labels can't be inferred: the last layer ({task.layers[-1].name}) has no row for each of the "
            f"{task.classes} classes",
            missing=["labels"],
        )
    name = (bias or weight)[0]
    begin = 0
    for other in task.names:
        if other == name:
            break
        begin += task.shapes[other].numel()
    gradient = observation.gradient[:, begin : begin + task.shapes[name].numel()]
    gradient = gradient.view(-1, *task.shapes[name])
    if bias:
        return gradient
    if observation.samples > 1:
        raise ThreatModelError(
            "labels of a batch can't be inferred: the last layer has no bias", missing=["labels"]
        )
    # Row k is ∂loss/∂logit_k times the features: projecting on the largest row turns rows into numbers.
    largest = gradient.norm(dim=2).argmax(1)
    direction = gradient[torch.arange(len(gradient), device=gradient.device), largest]
    # The largest row is the label's, the only one with a negative derivative.
    return -(gradient @ direction[:, :, None])[:, :, 0]
