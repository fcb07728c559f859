"""Labels that are searched together with the pixels, as Deep Leakage does (Zhu et al. 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from refiner.attacks.parametrisation import Pixels, normal
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.errors import DataError


@dataclass(frozen=True)
class JointLabels:
    """Pixels and, behind them, a score for each class, from standard normal noise; no label is known.

    An image's variables are flat, `[input + classes]`. Its label is the softmax of its scores.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> unknown = torch.zeros(4, 1, dtype=torch.long)
    >>> z = JointLabels().start(task, NoiseSource(seed=0), torch.arange(4)[:, None], torch.float32)
    >>> JointLabels().images(task, z, unknown).shape, JointLabels().labels(task, z, unknown).shape
    (torch.Size([4, 1, 3, 32, 32]), torch.Size([4, 1, 10]))
    """

    pixels: Pixels = field(default_factory=Pixels)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """None."""
        return {}

    def check(self, task: Task) -> None:
        """Refuse a loss that does not take the probabilities of classes as it takes labels."""
        scores = torch.linspace(-1, 1, 2 * task.classes).view(2, task.classes)
        labels = torch.arange(2) % task.classes
        certain = torch.nn.functional.one_hot(labels, task.classes).to(scores)
        like = next(iter(task.parameters().values()))
        scores, labels, certain = (t.to(like.device) for t in (scores, labels, certain))
        told = "loss: expected one that takes probabilities [B, classes] too, as cross entropy does"
        try:
            apart = float(task.loss_function(scores, certain) - task.loss_function(scores, labels))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise DataError(f"{told}, but it raises {type(error).__name__}") from error
        if not abs(apart) < 1e-4:
            raise DataError(f"{told}, but it has another value for a certain label than for that label")

    def start(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Uniform pixels and normal scores; an image's scores come from its stream behind its pixels."""
        pixels = self.pixels.start(task, source, ids, dtype).flatten(2)
        drawn = source.uniform(ids, (pixels.shape[2] + task.classes,), torch.float64)
        return torch.cat([pixels, normal(drawn[..., -task.classes :]).to(dtype)], dim=2)

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The pixels as images."""
        return z[..., : -task.classes].reshape(*z.shape[:2], *task.input_shape)

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The probabilities of the classes; what is known of the labels is not looked at."""
        return z[..., -task.classes :].softmax(-1)

    def boxed(self, task: Task, z: Tensor) -> Tensor:
        """The pixels in their box; every score is allowed."""
        pixels, scores = z[..., : -task.classes], z[..., -task.classes :]
        return torch.cat([self.pixels.boxed(task, pixels), scores], dim=2)

    def shown(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The images, cut at both ends."""
        return self.pixels.shown(task, self.images(task, z, y), y)
