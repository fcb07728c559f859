"""`Batch`: the validated data of all victims of one `protect` call."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from refiner.core.input_checks import describe_tensor, is_dense
from refiner.core.loss_targets import describe_targets, kind_of_target
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.state import DefenseState
from refiner.errors import DataError


@dataclass(frozen=True)
class Batch:
    """The data that `Defense.compute_upload` protects."""

    x: Tensor
    """Inputs `[V, B, *input]`."""
    y: Tensor
    """Labels `[V, B]`, or values `[V, B, outputs]` or `[V, B]`."""
    ids: Tensor | None
    """Sample ids `[V, B]`, if the caller passed any."""
    noise: NoiseSource
    value_range: tuple[float, float]
    """The smallest and the largest value of x."""
    state: DefenseState | None = None
    """What the defence remembers, if the caller passed a state."""
    clients: Sequence[int] | None = None
    """The number of every victim's client in that state; None if victim v is client v."""
    training: bool = False
    """Whether a client must answer whatever its values: those that are not finite are replaced."""
    noisy: Tensor | None = None
    """Inputs like `x` that carry their noise already, if the caller passed any."""

    def rows(self, rows: slice) -> "Batch":
        """The same for some of the victims."""
        ids = None if self.ids is None else self.ids[rows]
        clients = (self.clients or range(len(self.x)))[rows]
        noisy = None if self.noisy is None else self.noisy[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], ids=ids, clients=clients, noisy=noisy)


def validated_batch(
    task: Task,
    x: Tensor,
    y: Tensor,
    ids: Tensor | None,
    noise: NoiseSource,
    state: DefenseState | None,
    training: bool,
    noisy: Tensor | None = None,
) -> Batch:
    """The arguments of `protect` as a `Batch`; raises a one-line `DataError` if they do not fit the task."""
    if not isinstance(task, Task):
        raise DataError(
            f"task = {type(task).__name__}: expected a Task; make one with Task(model, example=x)",
            field="task",
            expected="a Task",
        )
    if not is_dense(x) or not x.is_floating_point():
        message = f"x = {describe_tensor(x)}: expected dense floating-point inputs"
        raise DataError(message, field="x", expected="dense floating-point inputs")
    axes = _check_shapes(task, x, y)
    if ids is not None:
        _check_ids(ids, x.shape[:axes])
    if noisy is not None and (not is_dense(noisy) or noisy.shape != x.shape or noisy.dtype != x.dtype):
        expected = f"inputs like x, {describe_tensor(x)}"
        raise DataError(f"noisy = {describe_tensor(noisy)}: expected {expected}", field="noisy")
    if axes == 1:
        noisy = None if noisy is None else noisy[None]
        x, y, ids = x[None], y[None], None if ids is None else ids[None]
    _check_device_and_dtype(task, x, y)
    if ids is not None:
        ids = ids.to(x.device)
    value_range = _checked_value_range(x.detach(), y, ids, task.classes)
    if noisy is not None:
        noisy = noisy.detach().to(x.device).contiguous()
    batch = Batch(x.detach().contiguous(), y.contiguous(), ids, noise, value_range, state)
    return replace(batch, training=training, noisy=noisy)


def _check_shapes(task: Task, x: Tensor, y: Tensor) -> int:
    """The number of leading axes of x: 1 for `[B, *input]`, 2 for `[V, B, *input]`."""
    shape = task.input_shape
    axes = x.ndim - len(shape)
    if axes not in (1, 2) or tuple(x.shape[axes:]) != shape or 0 in x.shape[:axes]:
        sizes = ", ".join(map(str, shape))
        expected = f"[B, {sizes}] or [V, B, {sizes}], V and B ≥ 1"
        raise DataError(f"x of shape {list(x.shape)}: expected {expected}", field="x", expected=expected)
    if not is_dense(y) or kind_of_target(y, x.shape[:axes], task.classes) not in task.targets:
        expected = f"dense {describe_targets(task.targets, x.shape[:axes], task.classes)}"
        raise DataError(f"y = {describe_tensor(y)}: expected {expected}", field="y", expected=expected)
    return axes


def _check_ids(ids: Tensor, shape: torch.Size) -> None:
    if not is_dense(ids) or ids.dtype != torch.long or ids.shape != shape:
        expected = f"dense torch.int64 ids of shape {list(shape)}"
        raise DataError(f"ids = {describe_tensor(ids)}: expected {expected}", field="ids", expected=expected)
    if ids.is_meta:
        raise DataError("ids on meta: expected a device that holds values", field="ids")


def _check_device_and_dtype(task: Task, x: Tensor, y: Tensor) -> None:
    parameter = task.model.get_parameter(task.names[0])
    if x.device != parameter.device or y.device != x.device:
        raise DataError(
            f"x on {x.device}, y on {y.device}: expected both on the model's device, {parameter.device}",
            field="x",
        )
    if x.dtype == torch.float16:
        raise DataError(
            "x of torch.float16: gradients of gradients overflow it; use float32 or bfloat16", field="x"
        )
    if x.dtype != parameter.dtype:
        raise DataError(f"x of {x.dtype}: expected the model's dtype, {parameter.dtype}", field="x")


def _checked_value_range(x: Tensor, y: Tensor, ids: Tensor | None, classes: int) -> tuple[float, float]:
    """The smallest and the largest value of x; raises if x, labels or ids are out of range."""
    x_limits = torch.stack(x.aminmax())
    y_limits = torch.stack(y.aminmax())
    limits = [x_limits, y_limits, *([] if ids is None else [ids.min()[None]])]
    # All are read together at the end: reading waits for the GPU.
    (low, high), (lowest_label, highest_label), *lowest_ids = (values.tolist() for values in limits)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(
            "x: contains NaN or infinity; no update was made", field="x", expected="finite values"
        )
    if y.is_floating_point():
        if not (math.isfinite(lowest_label) and math.isfinite(highest_label)):
            raise DataError(
                "y: contains NaN or infinity; no update was made", field="y", expected="finite values"
            )
    elif lowest_label < 0 or highest_label >= classes:
        label = lowest_label if lowest_label < 0 else highest_label
        expected = f"labels in [0, {classes - 1}]"
        raise DataError(f"y contains label {label}: expected {expected}", field="y", expected=expected)
    if lowest_ids and lowest_ids[0][0] < 0:
        raise DataError(f"ids contain {lowest_ids[0][0]}: expected ids ≥ 0", field="ids", expected="ids ≥ 0")
    return low, high
