"""Imprint: bins of mean brightness in front of the model separate the images of a batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.changed_model.front_attack import FrontAttack
from refiner.attacks.changed_model.front_module import ReadableUnits, brightness_edges, brightness_units
from refiner.attacks.simulation import KnownDefense

# Mean and standard deviation of the mean brightness of its images.
_CIFAR10_BRIGHTNESS = 0.473, 0.125


class ImprintModule(ReadableUnits):
    """Units that are active within one bin of mean brightness each."""


@dataclass(frozen=True)
class Imprint(FrontAttack):
    """Reads images exactly unless two of a batch have a similar brightness; the server changes the model.

    A linear layer in front of the model cuts the mean brightness of images into bins. Fowl et al. subtract
    the gradients of neighbouring bins; here the units are bounded as well, so that each bin's gradient is
    that of its own images. The bins with the largest gradients are returned, without any look at the truth.

    >>> from refiner import LeNet, NoDefense, Task
    >>> from refiner.attacks import Observation, ThreatModel
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
    module: ClassVar[type[ReadableUnits]] = ImprintModule

    bins: int = 16
    """Bins for each image of a batch: the more, the fewer images share one."""
    mean: float | None = None
    """The mean of the images' mean brightness; None for that of public images, or CIFAR-10's without any."""
    std: float | None = None
    """Its standard deviation, likewise; more behind a defence whose noise changes the brightness."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("bins", self.bins, 1, 1000)
        if self.std is not None:
            checks.number("std", self.std, 0, 1e3, above=True)
        if self.mean is not None:
            checks.number("mean", self.mean, -1e3, 1e3)

    def prepared(self, public: Tensor, defense: KnownDefense) -> Self:
        """Return the attack with the brightness of the public images, where none is set.

        Args:
            public: Public images `[N, C, H, W]`.
            defense: Not used.
        """
        brightness = public.flatten(1).mean(1)
        mean, std = float(brightness.mean()), float(brightness.std(correction=0))
        return replace(
            self,
            mean=mean if self.mean is None else self.mean,
            # Images of one brightness leave the width of the bins as it is.
            std=(std or None) if self.std is None else self.std,
        )

    def edges(self, samples: int) -> Tensor:
        """Return the edges of the bins for so many images."""
        mean, std = _CIFAR10_BRIGHTNESS
        return brightness_edges(
            self.bins * samples,
            mean if self.mean is None else self.mean,
            std if self.std is None else self.std,
        )

    def front(self, input_shape: tuple[int, ...], samples: int) -> ReadableUnits:
        """Return the bins for inputs of a shape and batches of so many images."""
        units = brightness_units(self.edges(samples), math.prod(input_shape))
        return ImprintModule(input_shape, *units, self.scale, bounded=True)

    def read(
        self, front: ReadableUnits, gradients: Mapping[str, Tensor], samples: int
    ) -> tuple[Tensor, Tensor]:
        """Return the images of the largest bins, and the share of the gradient in other bins.

        Args:
            front: The module in front of the model.
            gradients: The uploads by parameter.
            samples: The batch size.
        """
        weight, bias = (gradients[f"front.encoder.{name}"] for name in ("weight", "bias"))
        return read_units(weight, bias, samples, self.input_range)


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
