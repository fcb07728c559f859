"""What gradient matching optimises: the pixels themselves, or the input of a generator."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.core.input_range import InputRange, check_channels, check_input_range
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.generator import Generator


class ImageGenerator(Protocol):
    """A generator: maps latents `[N, latent]` and labels `[N]` to images `[N, C, H, W]`."""

    latent: int

    def __call__(self, z: Tensor, y: Tensor) -> Tensor: ...


class Parametrisation(Protocol):
    """How optimised variables `[V, B, …]` become images `[V, B, *input]` and their labels."""

    def check(self, task: Task) -> None:
        """Raise if it can't produce the task's inputs.

        Args:
            task: The model and its loss.
        """

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the networks that it uses.

        Args:
            task: The model and its loss.

        Returns:
            The networks by name.
        """

    def initial(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the variables before the first step, one random draw for each id.

        Args:
            task: The model and its loss.
            source: Draws the noise.
            ids: A number for each image, `[V, B]`.
            dtype: The type of the variables.

        Returns:
            The variables `[V, B, …]`.
        """

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the images of variables.

        Args:
            task: The model and its loss.
            z: The variables `[V, B, …]`.
            y: The labels `[V, B]`.

        Returns:
            The images `[V, B, *input]`; differentiable.
        """

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the labels of the images.

        Args:
            task: The model and its loss.
            z: The variables `[V, B, …]`.
            y: The labels `[V, B]`.

        Returns:
            `y`, or probabilities `[V, B, classes]` if labels are optimised too.
        """

    def project(self, task: Task, z: Tensor) -> Tensor:
        """Return the nearest allowed variables.

        Args:
            task: The model and its loss.
            z: The variables after a step.

        Returns:
            Variables of the same shape.
        """

    def result(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the images as a result, always within the range of valid images.

        Args:
            task: The model and its loss.
            z: The variables `[V, B, …]`.
            y: The labels `[V, B]`.

        Returns:
            The images `[V, B, *input]`.
        """


@dataclass(frozen=True)
class Pixels:
    """The pixels of the images, clamped to a range, starting from uniform noise.

    The methods are those of `Parametrisation`.

    Args:
        low: The lowest value of a pixel.
        high: The highest value of a pixel.
        bounded: Whether pixels are clamped after every step; results always are.
        channels: A range for each channel. Pixels are then in 0..1, and gradient matching maps them to it.

    >>> Pixels().project(None, torch.tensor([-1.0, 0.5, 2.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    low: float = 0.0
    high: float = 1.0
    bounded: bool = True
    channels: InputRange | None = None

    def __post_init__(self) -> None:
        if not checks.number("low", self.low, -1e6, 1e6) < checks.number("high", self.high, -1e6, 1e6):
            raise checks.wrong("high", self.high, f"a number above low = {self.low}")

    @classmethod
    def from_range(cls, input_range: object, *, bounded: bool = True) -> "Pixels":
        """Return pixels in the range of an attack's setting.

        Args:
            input_range: The setting, `(low, high)`, or lows and highs of the channels.
            bounded: Whether pixels are clamped after every step.

        Returns:
            The parametrisation.

        >>> Pixels.from_range((0, 1, True))
        Traceback (most recent call last):
        refiner.errors.SettingError: input_range = (0, 1, True): expected two numbers, the lower first, or ...
        """
        low, high = input_range = check_input_range(input_range)
        if isinstance(low, tuple) or isinstance(high, tuple):
            return cls(bounded=bounded, channels=input_range)
        return cls(low, high, bounded)

    def check(self, task: Task) -> None:
        """Raise if there are ranges for another number of channels; otherwise accept every task."""
        if self.channels is not None:
            check_channels(self.channels, task.input_shape)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return nothing: there are no networks."""
        return {}

    def initial(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return uniform noise over the range."""
        return self.low + (self.high - self.low) * source.uniform(ids, task.input_shape, dtype)

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return `z`: the variables are the images."""
        return z

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return `y`."""
        return y

    def project(self, task: Task, z: Tensor) -> Tensor:
        """Return `z` clamped to the range, if bounded."""
        return z.clamp(self.low, self.high) if self.bounded else z

    def result(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return `z` clamped to the range."""
        return z.clamp(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Latent:
    """The input of a generator, starting from standard normal noise.

    The methods are those of `Parametrisation`.
    """

    generator: ImageGenerator | str | None = None
    """A generator, or the path of its file; None for the bundled one."""

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the generator, if it is a module."""
        generator = self._generator(next(iter(task.parameters().values())))
        return {"generator": generator} if isinstance(generator, nn.Module) else {}

    def check(self, task: Task) -> None:
        """Raise if the generator makes images of another size, or has fewer classes."""
        parameter = next(iter(task.parameters().values()))
        generator = self._generator(parameter)
        classes = getattr(generator, "classes", task.classes)
        if classes < task.classes:
            raise DataError(
                f"generator: has {classes} classes, the task has {task.classes}",
                field="generator",
                value=f"{classes} classes",
                expected=f"{task.classes} classes",
            )
        label = torch.zeros(1, 1, dtype=torch.long, device=parameter.device)
        # An attack on a half-precision model computes in float32.
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        with torch.no_grad():
            z = parameter.new_zeros(1, 1, self._generator(label).latent, dtype=dtype)
            shape = list(self.images(task, z, label).shape[2:])
        if shape != list(task.input_shape):
            raise DataError(
                f"generator: makes images {shape}, the task takes {list(task.input_shape)}",
                field="generator",
                value=f"images {shape}",
                expected=f"images {list(task.input_shape)}",
            )

    def initial(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return standard normal noise."""
        return normal(source.uniform(ids, (self._generator(ids).latent,), torch.float64)).to(dtype)

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the generator's images of `z` and `y`."""
        images = self._generator(z)(z.flatten(0, 1), y.flatten())
        return images.view(*z.shape[:2], *images.shape[1:])

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return `y`."""
        return y

    def project(self, task: Task, z: Tensor) -> Tensor:
        """Return `z`: every latent is allowed."""
        return z

    def result(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Return the generator's images of `z` and `y`, clamped to 0..1."""
        return self.images(task, z, y).clamp(0, 1)

    def _generator(self, like: Tensor) -> ImageGenerator:
        """The generator on the device of `like`."""
        if isinstance(self.generator, str):
            return _load_generator(self.generator, like.device)
        return Generator.bundled(like.device) if self.generator is None else self.generator


def normal(uniform: Tensor) -> Tensor:
    """Return standard normal draws from uniform ones in 0..1.

    >>> normal(torch.tensor([0.5, 0.8413447])).round(decimals=3).tolist()
    [0.0, 1.0]
    """
    draws: Tensor = torch.special.ndtri(uniform.clamp(1e-7, 1 - 1e-7))
    return draws


@cache
def _load_generator(path: str, device: torch.device) -> Generator:
    return Generator.load(Path(path)).to(device)
