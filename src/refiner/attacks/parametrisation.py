"""What a search varies: the pixels themselves, or the input of a generator."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.generator import Generator


class Painter(Protocol):
    """A generator: latents `[N, latent]` and labels `[N]` in, images `[N, C, H, W]` out."""

    latent: int

    def __call__(self, z: Tensor, y: Tensor) -> Tensor: ...


class Parametrisation(Protocol):
    """How a search's variables `[V, B, …]` become images `[V, B, *input]` and their labels."""

    def check(self, task: Task) -> None:
        """Refuse a task whose images it can't make."""

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The networks that it makes them with, by name."""

    def start(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Variables before the first step, one draw for each of `ids [V, B]`."""

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The images of variables and known labels."""

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The known labels `[V, B]`, or probabilities `[V, B, classes]` where they are searched too."""

    def boxed(self, task: Task, z: Tensor) -> Tensor:
        """The nearest variables that a search may visit."""

    def shown(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The images as a result, always within the range of images."""


@dataclass(frozen=True)
class Pixels:
    """Pixels in a box, from uniform noise.

    >>> Pixels().boxed(None, torch.tensor([-1.0, 0.5, 2.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    low: float = 0.0
    high: float = 1.0
    bounded: bool = True
    """Whether the search itself keeps to the box; the result always does."""

    def __post_init__(self) -> None:
        if not checks.number("low", self.low, -1e6, 1e6) < checks.number("high", self.high, -1e6, 1e6):
            raise checks.wrong("high", self.high, f"a number above low = {self.low}")

    @classmethod
    def over(cls, input_range: object, *, bounded: bool = True) -> "Pixels":
        """Pixels in a range given as a setting.

        >>> Pixels.over((0, 1, True))
        Traceback (most recent call last):
        refiner.errors.SettingError: input_range = (0, 1, True): expected two numbers, the lower first
        """
        if not isinstance(input_range, tuple) or len(input_range) != 2:
            raise checks.wrong("input_range", input_range, "two numbers, the lower first")
        return cls(*input_range, bounded=bounded)

    def check(self, task: Task) -> None:
        """Pixels make images of every shape."""

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """None."""
        return {}

    def start(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Uniform noise over the box."""
        return self.low + (self.high - self.low) * source.uniform(ids, task.input_shape, dtype)

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The variables are the images."""
        return z

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The known ones."""
        return y

    def boxed(self, task: Task, z: Tensor) -> Tensor:
        """Cut at both ends, if bounded."""
        return z.clamp(self.low, self.high) if self.bounded else z

    def shown(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """Cut at both ends."""
        return z.clamp(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Latent:
    """The input of a generator, from standard normal noise."""

    generator: Painter | str | None = None
    """A generator, or the file of one; None for the one that comes with refiner."""

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The generator, if it is a module."""
        painter = self._painter(next(iter(task.parameters().values())))
        return {"generator": painter} if isinstance(painter, nn.Module) else {}

    def check(self, task: Task) -> None:
        """Refuse a generator of another image size, or of fewer classes."""
        like = next(iter(task.parameters().values()))
        classes = getattr(self._painter(like), "classes", task.classes)
        if classes < task.classes:
            raise DataError(f"generator: paints {classes} classes, the task has {task.classes}")
        label = torch.zeros(1, 1, dtype=torch.long, device=like.device)
        # An attack on a half-precision model computes in float32.
        dtype = torch.promote_types(like.dtype, torch.float32)
        with torch.no_grad():
            shown = self.images(task, like.new_zeros(1, 1, self._painter(label).latent, dtype=dtype), label)
        if tuple(shown.shape[2:]) != task.input_shape:
            raise DataError(
                f"generator: makes images {list(shown.shape[2:])}, the task takes {list(task.input_shape)}"
            )

    def start(self, task: Task, source: NoiseSource, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Standard normal noise."""
        return normal(source.uniform(ids, (self._painter(ids).latent,), torch.float64)).to(dtype)

    def images(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """What the generator makes of them."""
        shown = self._painter(z)(z.flatten(0, 1), y.flatten())
        return shown.view(*z.shape[:2], *shown.shape[1:])

    def labels(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """The known ones."""
        return y

    def boxed(self, task: Task, z: Tensor) -> Tensor:
        """Every latent is allowed."""
        return z

    def shown(self, task: Task, z: Tensor, y: Tensor) -> Tensor:
        """What the generator makes of them, cut to 0..1."""
        return self.images(task, z, y).clamp(0, 1)

    def _painter(self, like: Tensor) -> Painter:
        if isinstance(self.generator, str):
            return _loaded(self.generator, like.device)
        return Generator.bundled(like.device) if self.generator is None else self.generator


def normal(uniform: Tensor) -> Tensor:
    """Standard normal draws from uniform ones in 0..1.

    >>> normal(torch.tensor([0.5, 0.8413447])).round(decimals=3).tolist()
    [0.0, 1.0]
    """
    drawn: Tensor = torch.special.ndtri(uniform.clamp(1e-7, 1 - 1e-7))
    return drawn


@cache
def _loaded(path: str, device: torch.device) -> Generator:
    return Generator.load(Path(path)).to(device)
