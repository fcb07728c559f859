"""Clipping and noise: the form that studies of gradient leakage call differential privacy, and DP-SGD."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from refiner import checks
from refiner.core.distributions import gaussian, laplace, pieces
from refiner.core.gradients import Gradients, flatten, gradients, unflatten
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.base import Batch, GradientTransform

# Bounds on what is held of single samples' gradients at a time: entries in all, and samples.
_ENTRIES = 1 << 26
_SAMPLES = 128

LEAST_COUNTED = 0.01
"""The least magnitude of which ε is counted: with less, ε is above 100 for a single upload, and nothing."""


@dataclass(frozen=True)
class _ClipAndNoise(GradientTransform):
    magnitude: float = 1e-2
    """Scale of the noise in units of `clip`; the paper varies it from 1e-6 to 1e2."""
    clip: float | None = 1.0
    """C, the greatest norm that a gradient keeps. None clips nothing, and the unit of `magnitude` is 1."""
    per_sample: bool = False
    """Clip the gradient of every sample and not that of the batch. Batch norm then sees each sample alone."""

    norm: ClassVar[int]

    def __post_init__(self) -> None:
        checks.number("magnitude", self.magnitude, 0)
        if self.clip is not None:
            checks.number("clip", self.clip, 0, above=True)
        checks.flag("per_sample", self.per_sample)

    @property
    def needs(self) -> Literal["data", "gradient"]:  # type: ignore[override]
        """The data where every sample's gradient is clipped, else the gradient."""
        return "data" if self.per_sample else "gradient"

    @property
    def cost(self) -> str:  # type: ignore[override]
        """A draw for every entry; where every sample is clipped, a gradient for each too."""
        return "a gradient for every sample, a draw for every entry" if self.per_sample else "a draw an entry"

    @property
    def proves(self) -> bool:
        """Whether samples are clipped, and there is noise enough to count."""
        return self.per_sample and self.clip is not None and self.magnitude >= LEAST_COUNTED

    def guarantee(self) -> str:
        """None for a clipped batch; for clipped samples what `dp_epsilon` counts."""
        if self.proves:
            return (
                "(ε, δ) for one sample, counted by dp_epsilon(defense, steps=…, sampling_rate=…, delta=…), "
                "under the assumptions that it returns, among them Poisson-sampled batches, which no "
                "training here draws"
            )
        if self.clip is None:
            return "none: nothing is clipped, so that no noise is enough for every sample"
        if self.magnitude == 0:
            return "none: there is no noise"
        if self.per_sample:
            return f"none: ε is above 100 for a single upload with a magnitude below {LEAST_COUNTED}"
        return (
            "none: the clip bounds a client's whole upload and not the share that one sample has in it, "
            "and the rounds are not accounted for; per_sample = True has one, as dp_epsilon tells"
        )

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """Every victim's gradient clipped as one vector, and noise on every entry."""
        if self.per_sample:
            raise checks.wrong(
                "per_sample", True, "False where only a gradient is given: it is the mean, not the samples'"
            )
        flat = flatten(gradient)
        self._add_noise(flat, self._factor(flat), self._unit(), noise)
        sizes = [value[0].numel() for value in gradient.values()]
        parts = zip(gradient.items(), torch.split(flat, sizes, dim=1), strict=True)
        return {name: part.view_as(value).to(value.dtype) for (name, value), part in parts}

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        if not self.per_sample:
            return super()._upload(task, batch)
        mean = self._mean_of_clipped(task, batch.x, batch.y)
        self._add_noise(mean, None, self._unit() / batch.x.shape[1], batch.noise)
        return unflatten(task, mean.to(batch.x.dtype))

    def _mean_of_clipped(self, task: Task, x: Tensor, y: Tensor) -> Tensor:
        """The mean `[V, N]` of the clipped gradients of single samples, a few of them at a time."""
        victims, size = y.shape
        total = torch.zeros(
            victims, task.size, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device
        )
        for place in _groups(victims, size, max(1, min(_SAMPLES, _ENTRIES // task.size))):
            some_x, some_y = x[place], y[place]
            alone = gradients(task, some_x.flatten(0, 1)[:, None], some_y.flatten(0, 1)[:, None])
            flat = flatten(alone).to(total.dtype)
            factor = self._factor(flat)
            if factor is not None:
                flat *= factor
            total[place[0]] += flat.view(*some_y.shape, -1).sum(1)
        return total / size

    def _factor(self, flat: Tensor) -> Tensor | None:
        """What brings the norm of each row down to C, `[…, 1]` in float64: a square overflows in float32."""
        if self.clip is None:
            return None
        norms = torch.linalg.vector_norm(flat, self.norm, dim=1, keepdim=True, dtype=torch.float64)
        factor: Tensor = (self.clip / norms).clamp(max=1)
        return factor

    def _unit(self) -> float:
        return self.magnitude * (1 if self.clip is None else self.clip)

    def _add_noise(self, flat: Tensor, factor: Tensor | None, scale: float, noise: NoiseSource) -> None:
        """In place: each row times its factor, plus noise, rounded once to the gradient's type."""
        for place, ids in pieces(flat, first=noise.first):
            part = flat[place].double()
            if factor is not None:
                part *= factor[place[0]]
            if scale:
                part += self._draw(noise, ids, part.shape[1]).mul_(scale)
            flat[place] = part

    @abstractmethod
    def _draw(self, noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
        """Noise of scale 1."""


def _groups(victims: int, size: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Rectangles of `[V, B]` that hold at most `most` samples."""
    rows, columns = max(1, most // size), min(size, most)
    for top in range(0, victims, rows):
        for left in range(0, size, columns):
            yield slice(top, top + rows), slice(left, left + columns)


@dataclass(frozen=True)
class DPGaussian(_ClipAndNoise):
    """Clips to an L2 norm of C and adds Gaussian noise of standard deviation magnitude · C to every entry.

    With `per_sample` (DP-SGD) each sample's gradient is clipped, and the noise on their mean is divided by B.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> update = DPGaussian(magnitude=0).protect(Task(LeNet(), example=x), x, y)
    >>> update, bool(update.flat().norm() < 1.0001)
    (Update(dp-gaussian, victims=1, samples=2, parameters=8), True)
    >>> DPGaussian(magnitude=-1)
    Traceback (most recent call last):
    refiner.errors.SettingError: magnitude = -1: expected a number in [0, ∞)
    """

    name: ClassVar[str] = "dp-gaussian"
    norm: ClassVar[int] = 2

    def _draw(self, noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
        return gaussian(noise, ids, count)


@dataclass(frozen=True)
class DPLaplace(_ClipAndNoise):
    """Clips to an L1 norm of C and adds Laplace noise of scale b = magnitude · C to every entry.

    Laplace noise hides what is bounded in L1. A large model's L1 norm is far above its L2 norm, so that the
    same C leaves much less of the gradient. With `per_sample` it does as `DPGaussian` does.

    >>> DPLaplace(clip=None).guarantee()
    'none: nothing is clipped, so that no noise is enough for every sample'
    """

    name: ClassVar[str] = "dp-laplace"
    norm: ClassVar[int] = 1

    def _draw(self, noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
        return laplace(noise, ids, count)
