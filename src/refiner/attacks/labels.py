"""Labels from the last layer's gradient (iDLG, Zhao et al. 2020), for single samples and for batches."""

import torch
from torch import Tensor

from refiner.attacks.observation import Observation
from refiner.errors import DataError


def infer_labels(*seen: Observation) -> Tensor:
    """The labels of every victim, `[V, B]`, in rising order; several uploads of it are averaged.

    For one sample the slope of the last bias is p − 1 at its label and p elsewhere: its only negative entry.
    For B samples that of class k is p̄_k − count_k / B, with p̄ the model's mean answer.

    >>> from refiner.core import Task
    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 1, 3, 32, 32), torch.tensor([[7], [0], [4]])
    >>> task = Task(LeNet(), example=x[0])
    >>> infer_labels(Observation.of(task, NoDefense().protect(task, x, y))).flatten().tolist()
    [7, 0, 4]
    """
    slope = torch.stack([_class_slopes(upload) for upload in seen]).mean(0)
    samples = seen[0].samples
    if samples == 1:
        return slope.argmin(1, keepdim=True)
    # Nothing is known of p̄ but at the start, where the classes are alike: of a trained model fewer counts are
    # right. Whole counts that sum to B by the largest rests.
    expected = (1 / slope.shape[1] - slope).clamp_min(1e-12)
    expected = expected * samples / expected.sum(1, keepdim=True)
    counts = expected.floor()
    place = (expected - counts).argsort(1, descending=True).argsort(1)
    counts = counts + (place < samples - counts.sum(1, keepdim=True))
    classes = torch.arange(slope.shape[1], device=slope.device)
    return torch.stack([classes.repeat_interleave(row.long()) for row in counts])


def _class_slopes(seen: Observation) -> Tensor:
    """∂loss/∂score of every class, `[V, classes]`, by the last bias or, up to a factor, the last weight."""
    task = seen.task
    last = task.layers[-1].parameters
    bias = [name for name in last if task.shapes[name] == (task.classes,)]
    weight = [name for name in last if len(task.shapes[name]) == 2 and task.shapes[name][0] == task.classes]
    if not bias and not weight:
        raise DataError(
            f"labels: the last layer ({task.layers[-1].name}) has no row for each of the {task.classes} "
            "classes; grant the labels with ThreatModel(labels=True)"
        )
    name = (bias or weight)[0]
    begin = 0
    for other in task.names:
        if other == name:
            break
        begin += task.shapes[other].numel()
    found = seen.gradient[:, begin : begin + task.shapes[name].numel()].view(-1, *task.shapes[name])
    if bias:
        return found
    if seen.samples > 1:
        raise DataError(
            "labels: counts of a batch need the last layer's bias; grant them with ThreatModel(labels=True)"
        )
    # Row k is slope_k times the features: along the strongest row's own direction all rows become numbers.
    strongest = found.norm(dim=2).argmax(1)
    direction = found[torch.arange(len(found), device=found.device), strongest]
    # The strongest row is that of the label, whose slope alone is negative.
    return -(found @ direction[:, :, None])[:, :, 0]
