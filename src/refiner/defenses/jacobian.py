"""Jacobian noise: the first-order effect of noise in the data, added to the gradient; its mean is exactly zero."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from refiner import checks
from refiner.core.gradients import Gradients, directional
from refiner.core.noise import NoiseSource
from refiner.core.precision import tensor_float32
from refiner.core.task import Task
from refiner.defenses.base import Batch, Defense


@dataclass(frozen=True)
class JacobianNoise(Defense):
    """Uploads g + J·n with J = ∂g/∂x and n uniform in ±width/2: one Jacobian–vector product, no search.

    It errs only in directions that data can move the gradient in, and without a mean. That also means that
    uploads of one sample average out, unless its id is given, which fixes its noise.
    """

    name: ClassVar[str] = "jacobian-noise"

    width: float = 2.6

    def __post_init__(self) -> None:
        checks.number("width", self.width, 0, 100)

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        ids = batch.ids
        if ids is None:
            ids = batch.noise.fresh(batch.y.numel(), batch.x.device).view(batch.y.shape)
        noise = self.width * (batch.noise.uniform(ids, task.input_shape, batch.x.dtype) - 0.5)
        with tensor_float32(False):
            real, along = directional(task, batch.x, batch.y, noise)
        return {name: real[name] + along[name] for name in task.names}
