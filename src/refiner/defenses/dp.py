"""Clipping and noise: on the whole upload, as in studies of gradient leakage, or per sample, as in DP-SGD."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from refiner import checks
from refiner.core.distributions import gaussian, laplace, stream_blocks
from refiner.core.gradients import Gradients, flatten, gradients
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.batch import Batch
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.result import Upload

# Limits on the per-sample gradients that are in memory at a time: entries in total, and samples.
_MAX_ENTRIES = 1 << 26
_MAX_SAMPLES = 128

MIN_MAGNITUDE_FOR_EPSILON = 0.01
"""The smallest magnitude for which ε is computed; below it ε exceeds 100 after a single upload."""


@dataclass(frozen=True)
class _ClipAndNoise(GradientTransform):
    magnitude: float = 1e-2
    """Scale of the noise in units of `clip`; the paper varies it from 1e-6 to 1e2."""
    clip: float | None = 1.0
    """C, the largest norm of a clipped gradient. None does not clip, and the unit of `magnitude` is 1."""
    per_sample: bool = False
    """Clip the gradient of every sample, not that of the batch. Batch norm then sees each sample alone."""

    norm: ClassVar[int]

    def __post_init__(self) -> None:
        checks.number("magnitude", self.magnitude, 0)
        if self.clip is not None:
            checks.number("clip", self.clip, 0, above=True)
        checks.flag("per_sample", self.per_sample)

    @property
    def needs(self) -> Literal["data", "gradient"]:  # type: ignore[override]
        """The data if every sample's gradient is clipped, else the gradient."""
        return "data" if self.per_sample else "gradient"

    @property
    def cost(self) -> str:  # type: ignore[override]
        """A random draw per entry; a gradient per sample if every sample is clipped."""
        return "a gradient per sample and a random draw per entry" if self.per_sample else "a draw per entry"

    @property
    def has_guarantee(self) -> bool:
        """Whether samples are clipped and the noise is large enough for an ε below 100."""
        return self.per_sample and self.clip is not None and self.magnitude >= MIN_MAGNITUDE_FOR_EPSILON

    def guarantee(self) -> str:
        """Nothing for a clipped batch; (ε, δ) from `dp_epsilon` for clipped samples."""
        if self.has_guarantee:
            return (
                "(ε, δ)-differential privacy for one sample; dp_epsilon(defense, steps=…, sampling_rate=…, "
                "delta=…) computes ε and lists its assumptions, among them Poisson-sampled batches, which no "
                "training in this package draws"
            )
        if self.clip is None:
            return "none: without clipping no noise is large enough for every sample"
        if self.magnitude == 0:
            return "none: there is no noise"
        if self.per_sample:
            return (
                f"none: ε exceeds 100 after a single upload at a magnitude below {MIN_MAGNITUDE_FOR_EPSILON}"
            )
        return (
            "none: the clip bounds a client's whole upload, not the contribution of one sample, and rounds "
            "are not accounted for; use per_sample = True and dp_epsilon"
        )

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """Every victim's gradient clipped as one vector, with noise on every entry."""
        if self.per_sample:
            raise checks.wrong(
                "per_sample", True, "False if only a gradient is available: it is a mean over samples"
            )
        flat = flatten(gradient)
        self._add_noise(flat, self._clip_factor(flat), self._noise_unit(), noise)
        sizes = [value[0].numel() for value in gradient.values()]
        columns = zip(gradient.items(), torch.split(flat, sizes, dim=1), strict=True)
        return {name: block.view_as(value).to(value.dtype) for (name, value), block in columns}

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """The clipped gradient with noise, or the mean of clipped per-sample gradients with noise."""
        if not self.per_sample:
            return super().compute_upload(task, batch)
        mean = self._mean_of_clipped(task, batch.x, batch.y)
        self._add_noise(mean, None, self._noise_unit() / batch.x.shape[1], batch.noise)
        return Upload(task.unflatten(mean.to(batch.x.dtype)))

    def _mean_of_clipped(self, task: Task, x: Tensor, y: Tensor) -> Tensor:
        """The mean `[V, N]` of the clipped per-sample gradients, computed in blocks of samples."""
        victims, size = x.shape[:2]
        total = torch.zeros(
            victims, task.size, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device
        )
        for block in _blocks(victims, size, max(1, min(_MAX_SAMPLES, _MAX_ENTRIES // task.size))):
            block_x, block_y = x[block], y[block]
            per_sample = gradients(task, block_x.flatten(0, 1)[:, None], block_y.flatten(0, 1)[:, None])
            flat = flatten(per_sample).to(total.dtype)
            factor = self._clip_factor(flat)
            if factor is not None:
                flat *= factor
            total[block[0]] += flat.view(*block_x.shape[:2], -1).sum(1)
        return total / size

    def _clip_factor(self, flat: Tensor) -> Tensor | None:
        """The factor `[V, 1]` that reduces each row's norm to C, in float64: float32 squares overflow."""
        if self.clip is None:
            return None
        norms = torch.linalg.vector_norm(flat, self.norm, dim=1, keepdim=True, dtype=torch.float64)
        factor: Tensor = (self.clip / norms).clamp(max=1)
        return factor

    def _noise_unit(self) -> float:
        return self.magnitude * (1 if self.clip is None else self.clip)

    def _add_noise(self, flat: Tensor, factor: Tensor | None, scale: float, noise: NoiseSource) -> None:
        """Multiply each row by its factor and add noise, in place, with one rounding to the row's dtype."""
        for place, ids in stream_blocks(flat, first_victim=noise.first_victim):
            block = flat[place].double()
            if factor is not None:
                block *= factor[place[0]]
            if scale:
                block += self._draw(noise, ids, block.shape[1]).mul_(scale)
            flat[place] = block

    @abstractmethod
    def _draw(self, noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
        """Noise of scale 1."""


def _blocks(victims: int, size: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Index rectangles of `[V, B]` with at most `most` samples each."""
    rows, columns = max(1, most // size), min(size, most)
    for top in range(0, victims, rows):
        for left in range(0, size, columns):
            yield slice(top, top + rows), slice(left, left + columns)


@dataclass(frozen=True)
class DPGaussian(_ClipAndNoise):
    """Clips to an L2 norm of C and adds Gaussian noise of standard deviation magnitude · C to every entry.

    With `per_sample` it is DP-SGD: each sample's gradient is clipped, and the noise on their mean is divided
    by B.

    Paper: Abadi et al., Deep Learning with Differential Privacy, CCS 2016.

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
    reference: ClassVar[str] = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016"
    norm: ClassVar[int] = 2

    def _draw(self, noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
        return gaussian(noise, ids, count)


@dataclass(frozen=True)
class DPLaplace(_ClipAndNoise):
    """Clips to an L1 norm of C and adds Laplace noise of scale b = magnitude · C to every entry.

    Laplace noise protects a vector of bounded L1 norm. A large model's L1 norm is far above its L2 norm, so
    the same C removes much more of the gradient. With `per_sample` as `DPGaussian`.

    Paper: Dwork et al., Calibrating Noise to Sensitivity in Private Data Analysis, TCC 2006.

    >>> DPLaplace(clip=None).guarantee()
    'none: without clipping no noise is large enough for every sample'
    """

    name: ClassVar[str] = "dp-laplace"
    reference: ClassVar[str] = (
        "Dwork et al., Calibrating Noise to Sensitivity in Private Data Analysis, TCC 2006"
    )
    norm: ClassVar[int] = 1

    def _draw(self, noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
        return laplace(noise, ids, count)
