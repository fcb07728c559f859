"""Imprint: bins of mean brightness in front of the model separate the images of a batch."""

import math
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack, Reconstruction, RunOptions
from refiner.attacks.front_module import (
    ReadableUnits,
    brightness_edges,
    brightness_units,
    front_of,
    put_in_front,
)
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.observation import Observation
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.task import Task


class ImprintModule(ReadableUnits):
    """Units that are active within one bin of mean brightness each."""


@dataclass(frozen=True)
class Imprint(Attack):
    """Reads images exactly unless two of a batch have a similar brightness; the server changes the model.

    A linear layer in front of the model cuts the mean brightness of images into bins. Fowl et al. subtract
    the gradients of neighbouring bins; here the units are bounded as well, so that each bin's gradient is
    that of its own images. The bins with the largest gradients are returned, without any look at the truth.

    >>> from refiner import LeNet, NoDefense
    >>> x, y = torch.tensor([0.2, 0.5, 0.8]).view(1, 3, 1, 1, 1) * torch.rand(3, 32, 32), torch.arange(3)
    >>> attack = Imprint(mean=0.25, std=0.12)
    >>> task = attack.changed_task(Task(LeNet(), example=x[0]), samples=3)
    >>> seen = Observation.of(task, NoDefense().protect(task, x, y[None]))
    >>> found = attack.reconstruct(seen, threat=ThreatModel(changed_model=True)).x
    >>> bool((found[:, None] - x[:, :, None]).abs().flatten(3).amax(3).amin(2).max() < 1e-3)
    True
    """

    name: ClassVar[str] = "imprint"
    reference: ClassVar[str] = (
        "Fowl, Geiping, Czaja, Goldblum and Goldstein, Robbing the Fed: Directly Obtaining Private Data in "
        "Federated Learning with Modified Models, ICLR 2022"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"changed_model"})

    bins: int = 16
    """Bins for each image of a batch: the more, the fewer images share one."""
    mean: float = 0.473
    """The mean of the images' mean brightness, by default CIFAR-10's."""
    std: float = 0.125
    """Its standard deviation; more behind a defence whose noise changes the brightness."""
    scale: float = 1.0
    """The length of what an active unit adds to the input: the larger, the larger is its gradient."""
    input_range: tuple[float, float] = (0.0, 1.0)
    """The range to which reconstructions are clipped."""

    def __post_init__(self) -> None:
        checks.integer("bins", self.bins, 1)
        checks.number("std", self.std, 0, 1e3, above=True)
        checks.number("mean", self.mean, -1e3, 1e3)
        checks.number("scale", self.scale, 0, 1e6, above=True)

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the bins in front of the model.

        Args:
            task: The model and its loss.
            samples: The batch size that the server expects.

        Returns:
            The task that clients receive.

        Raises:
            DataError: Nothing can be put in front of the model.
        """
        edges = brightness_edges(self.bins * samples, self.mean, self.std)
        units = brightness_units(edges, math.prod(task.input_shape))
        return put_in_front(task, ImprintModule(task.input_shape, *units, self.scale, bounded=True))

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Read the images off the gradient of the bins.

        Args:
            observations: One or more uploads of the same victims; of several the mean is read.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The images. The objective is the share of the bins' gradient that no image was read from.

        Raises:
            DataError: The uploads were made with another model.
        """
        start = time.perf_counter()
        first = observations[0]
        front_of(first.task, ImprintModule, self.name)
        named = first.task.unflatten(torch.stack([o.gradient for o in observations]).mean(0))
        weight, bias = named["front.encoder.weight"], named["front.encoder.bias"]
        x, objective = read_units(weight, bias, first.samples, self.input_range)
        granted = first.labels
        labels = granted if threat.labels and granted is not None else infer_labels(*observations)
        x = x.view(-1, first.samples, *first.task.input_shape)
        diverged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return Reconstruction(x, labels.to(x.device), objective, diverged, time.perf_counter() - start)


def read_units(
    weight: Tensor, bias: Tensor, count: int, input_range: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return the images of the units with the largest gradients.

    Args:
        weight: Gradients of the units' weights, `[V, K, inputs]`.
        bias: Gradients of their biases, `[V, K]`.
        count: How many images to return.
        input_range: The range of their values; a unit without any gradient gives its middle.

    Returns:
        Images `[V, count, inputs]`, and the share of Σ |bias| in other units, `[V]`.
    """
    low, high = input_range
    strength = bias.abs()
    chosen = strength.topk(min(count, bias.shape[1]), dim=1).indices
    chosen = chosen[:, torch.arange(count, device=chosen.device) % chosen.shape[1]]
    numerator = weight.gather(1, chosen[..., None].expand(-1, -1, weight.shape[2]))
    denominator = bias.gather(1, chosen)[..., None]
    x = torch.where(denominator == 0, (low + high) / 2, numerator / denominator).nan_to_num((low + high) / 2)
    total = strength.sum(1).clamp_min(torch.finfo(bias.dtype).tiny)
    return x.clamp(low, high), 1 - strength.gather(1, chosen).sum(1).div(total).clamp(max=1)
