"""The shapes of victims that an audit accepts: batches `[V, B, C, H, W]` or single images `[N, C, H, W]`."""

from torch import Tensor

from refiner.core.task import Task
from refiner.errors import DataError


def with_batch_axis(task: Task, x: Tensor, y: Tensor, prefix: str = "") -> tuple[Tensor, Tensor]:
    """Return images and labels as `[V, B, …]`; the values are checked later, by the defence.

    >>> import torch
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(4, 3, 32, 32), torch.arange(4)
    >>> [tensor.shape[:2] for tensor in with_batch_axis(Task(LeNet(), example=x), x, y)]
    [torch.Size([4, 1]), torch.Size([4, 1])]
    """
    if not isinstance(task, Task):
        raise DataError(
            field="task", value=task, expected="a Task; create one with refiner.Task(model, example=x)"
        )
    shape = task.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"task: its inputs have shape {list(shape)}, expected images [C, H, W] with C = 1 or 3",
            field="task",
            expected="a Task of images [C, H, W] with C = 1 or 3",
        )
    if "labels" not in task.targets:
        expected = "a loss that takes class labels, as an audit's images have"
        raise DataError(f"task: its loss takes none; expected {expected}", field="task", expected=expected)
    image = ", ".join(map(str, shape))
    axes = x.ndim - 3 if isinstance(x, Tensor) else 0
    if not isinstance(x, Tensor) or axes not in (1, 2) or tuple(x.shape[axes:]) != shape or not x.numel():
        raise DataError(
            field=f"{prefix}x", value=x, expected=f"images of shape [N, {image}] or [V, B, {image}]"
        )
    if not isinstance(y, Tensor) or y.shape != x.shape[:axes]:
        raise DataError(
            field=f"{prefix}y",
            value=y,
            expected=f"labels of shape {list(x.shape[:axes])}, one for every image",
        )
    return (x, y) if axes == 2 else (x[:, None], y[:, None])
