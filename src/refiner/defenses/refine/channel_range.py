"""Refiner with a range for each channel: batches in 0..1, and a task that maps them to the ranges."""

from dataclasses import replace

import torch
from torch import Tensor

from refiner.core.input_range import InputRange, check_channels, is_per_channel, to_unit_range
from refiner.core.task import Task
from refiner.defenses.batch import Batch
from refiner.errors import DataError

# How far a value may be outside of its channel's range, in units of it: means and deviations are rounded.
_ROUNDING = 1e-3


def to_unit_batch(input_range: InputRange, task: Task, batch: Batch) -> tuple[Task, Batch]:
    """Return task and batch for images in 0..1; both as they are if there is one range for all channels.

    Args:
        input_range: The setting of a defence.
        task: The model and its loss.
        batch: Inputs within that range.

    Returns:
        A task that maps 0..1 to the range, and the batch in 0..1.

    Raises:
        SettingError: The range has another number of channels than the inputs.
        DataError: An input is outside of its channel's range.
    """
    if not is_per_channel(input_range):
        return task, batch
    axes = len(task.input_shape)
    check_channels(input_range, task.input_shape)
    x = to_unit_range(batch.x, input_range, axes)
    low, high = _checked_range(x, batch.x, input_range, axes)
    noisy = None if batch.noisy is None else to_unit_range(batch.noisy, input_range, axes)
    unit = replace(batch, x=x, noisy=noisy, value_range=(max(low, 0.0), min(high, 1.0)))
    return task.with_unit_inputs(input_range), unit


def _checked_range(unit: Tensor, x: Tensor, input_range: InputRange, axes: int) -> tuple[float, float]:
    """The smallest and the largest value in 0..1; raises if a channel is outside of its range."""

    def by_channel(values: Tensor) -> Tensor:
        return values.movedim(-axes, 0).flatten(1)

    rows = by_channel(unit)
    lows, highs = (rows.amin(1).tolist(), rows.amax(1).tolist())
    for channel, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            found = torch.stack(by_channel(x)[channel].aminmax()).tolist()
            raise DataError(
                f"x: channel {channel} in [{found[0]:.4g}, {found[1]:.4g}], outside input_range = "
                f"{input_range}: noise of that range would hide too little; set input_range",
                field="x",
                expected=f"values in {input_range}",
            )
    return min(lows), max(highs)
