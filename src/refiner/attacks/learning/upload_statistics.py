"""Numbers by which uploads are compared: inputs of linear layers that they reveal, and projections."""

from collections.abc import Callable

import torch
from torch import Tensor

from refiner.attacks.features import Projection
from refiner.attacks.learning.upload_features import UploadFeatures, longest_allowed, shortened
from refiner.core.task import Task

Statistic = Callable[[Tensor], Tensor]
"""Maps uploads `[V, N]` to the numbers `[V, D]` that they are compared by."""


def upload_statistics(task: Task, undefended: Tensor, numbers: int, seed: int) -> list[Statistic]:
    """Return statistics of uploads of one sample: a projection and, if there are any, linear layers' inputs.

    Args:
        task: The model and its loss.
        undefended: Undefended gradients of single samples `[n, N]`, which show how long inputs are.
        numbers: The most numbers of a statistic.
        seed: Seed of the projections.

    Returns:
        The projection, which is linear, and the inputs, which are not.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(1, 3, 32, 32))
    >>> [statistic(torch.rand(3, task.size)).shape[1] for statistic in upload_statistics(
    ...     task, torch.rand(5, task.size), 1000, seed=0)]
    [1000, 768]
    """
    features = UploadFeatures(task, 1, numbers, seed)
    statistics: list[Statistic] = [Projection(task.size, numbers, seed)]
    if features.kind != "inputs":
        return statistics

    def inputs(gradient: Tensor) -> Tensor:
        # Of one sample they do not depend on the label.
        labels = torch.zeros(len(gradient), 1, dtype=torch.long)
        return features([gradient], labels).flatten(1).nan_to_num(0.0, 0.0, 0.0)

    longest = longest_allowed(inputs(undefended))
    return [*statistics, lambda gradient: shortened(inputs(gradient), longest)]
