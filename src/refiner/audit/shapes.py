"""Victims as an audit takes them: `[V, B, C, H, W]`, or single images `[N, C, H, W]`."""

from torch import Tensor

from refiner.core.task import Task
from refiner.errors import DataError


def shaped(task: Task, x: Tensor, y: Tensor, prefix: str = "") -> tuple[Tensor, Tensor]:
    """Images and labels with their batch axis; what lies in them is the defence's to check.

    >>> import torch
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(4, 3, 32, 32), torch.arange(4)
    >>> [t.shape[:2] for t in shaped(Task(LeNet(), example=x), x, y)]
    [torch.Size([4, 1]), torch.Size([4, 1])]
    """
    if not isinstance(task, Task):
        raise DataError(
            f"task = {type(task).__name__}: expected a Task; make one with Task(model, example=x)"
        )
    shape = task.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"task of inputs {list(shape)}: an audit compares images, expected [C, H, W] with C = 1 or 3"
        )
    wanted = ", ".join(map(str, shape))
    axes = x.ndim - 3 if isinstance(x, Tensor) else 0
    if not isinstance(x, Tensor) or axes not in (1, 2) or tuple(x.shape[axes:]) != shape or not x.numel():
        found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise DataError(f"{prefix}x = {found}: expected victims [N, {wanted}] or [V, B, {wanted}]")
    if not isinstance(y, Tensor) or y.shape != x.shape[:axes]:
        found = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise DataError(f"{prefix}y = {found}: expected {list(x.shape[:axes])}, a label for every image")
    return (x, y) if axes == 2 else (x[:, None], y[:, None])
