"""Pixels and labels optimised together, as in DLG (Zhu, Liu and Han, NeurIPS 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from refiner.attacks.matching.parametrisation import Pixels, normal
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.errors import DataError


@dataclass(frozen=True)
class JointLabels:
    """Pixels and one logit for each class, the logits starting from standard normal noise.

    The variables of an image are flat, `[input + classes]`. Its label is the softmax of its logits; the
    labels `y` that the methods take are ignored.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> ignored = torch.zeros(4, 1, dtype=torch.long)
    >>> z = JointLabels().initial(task, NoiseSource(seed=0), torch.arange(4)[:, None], torch.float32)
    >>> JointLabels().images(task, z, ignored).shape, JointLabels().labels(task, z, ignored).shape
    (torch.Size([4, 1, 3, 32, 32]), torch.Size([4, 1, 10]))
    """

    pixels: Pixels = field(default_factory=Pixels)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return nothing: there are no networks."""
        return {}

    def check(self, task: Task) -> None:
        """Raise if the loss does not accept class probabilities, or gives them another value than labels."""
        self.pixels.check(task)
        logits = torch.linspace(-1, 1, 2 * task.classes).view(2, task.classes)
        labels = torch.arange(2) % task.classes
        one_hot = torch.nn.functional.one_hot(labels, task.classes).to(logits)
        device = next(iter(task.parameters().values())).device
        logits, labels, one_hot = (t.to(device) for t in (logits, labels, one_hot))
        expected = "one that takes probabilities [B, classes] too, as cross entropy does"
        try:
            difference = float(task.loss_function(logits, one_hot) - task.loss_function(logits, labels))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise DataError(
                f"loss: expected {expected}, but it raises {type(error).__name__}",
                field="loss",
                value=type(error).__name__,
                expected=expected,
            ) from error
        if not abs(difference) < 1e-4:
            raise DataError(
                f"loss: expected {expected}, but a one-hot label has another value than the label itself",
                field="loss",
                value=difference,
                expected=expected,
            )

    def initial(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return uniform pixels and normal logits; both come from the image's own stream of draws."""
        pixels = self.pixels.initial(task, source, ids, dtype).flatten(2)
        draws = source.uniform(ids, (pixels.shape[2] + task.classes,), torch.float64)
        return torch.cat([pixels, normal(draws[..., -task.classes :]).to(dtype)], dim=2)

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the pixels as images."""
        return z[..., : -task.classes].reshape(*z.shape[:2], *task.input_shape)

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the class probabilities `[V, B, classes]`."""
        return z[..., -task.classes :].softmax(-1)

    def project(self, task: Task, z: Tensor) -> Tensor:
        """Return `z` with its pixels clamped; every logit is allowed."""
        pixels, logits = z[..., : -task.classes], z[..., -task.classes :]
        return torch.cat([self.pixels.project(task, pixels), logits], dim=2)

    def result(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the images, clamped to the range of pixels."""
        return self.pixels.result(task, self.images(task, z, y), y)
