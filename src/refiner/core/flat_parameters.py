"""The parameters of a task's model as one tensor."""

import torch
from torch import Tensor

from refiner.core.task import Task


def set_parameters(task: Task, flat: Tensor) -> None:
    """Copy the parameters `flat [N]` into the model of `task`.

    Args:
        task: The model and its loss.
        flat: The values, in the order of `task.names`.
    """
    parameters = list(task.parameters().values())
    pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
    views = [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
    torch._foreach_copy_(parameters, views)


def get_parameters(task: Task) -> Tensor:
    """Return the parameters of the model of `task` as one tensor `[N]`.

    Args:
        task: The model and its loss.

    >>> from torch import nn
    >>> task = Task(nn.Linear(2, 1), example=torch.rand(1, 2))
    >>> set_parameters(task, torch.arange(3.0))
    >>> get_parameters(task).tolist()
    [0.0, 1.0, 2.0]
    """
    return torch.cat([parameter.flatten() for parameter in task.parameters().values()])
