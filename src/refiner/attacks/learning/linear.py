"""Linear reconstruction: ridge regression from features of an upload to the image, in seconds on a CPU."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.label_inference import known_labels
from refiner.attacks.learning.ridge import RidgeFit, RidgeSums
from refiner.attacks.learning.upload_features import UploadFeatures, longest_allowed, shortened
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import Simulator
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.precision import tensor_float32

# Uploads of simulated clients at a time: this many samples, and this many values.
_SAMPLES_AT_ONCE = 256
_VALUES_AT_ONCE = 2**27
_HELD_OUT = 0.1
_MAX_HELD_OUT = 1000
# Of the uploads that a penalty is chosen and a regression is fitted on, at least this many batches.
_FEWEST_BATCHES = 10


@dataclass(frozen=True)
class LinearReconstruction(Attack):
    """Ridge regression from label-free features of the upload to the image, learned on simulated uploads.

    The linear form of learning to invert (Wu, Chen, Guo and Weinberger, "Learning to Invert: Simple Adaptive
    Attacks for Gradient Inversion in Federated Learning", UAI 2023). For single images the features are the
    inputs of the linear layers, gW / gb, which an undefended upload reveals exactly; for batches they are one
    such estimate for every label in the batch. A model without such a layer is attacked through a projection
    of the whole gradient, which is weak: the attack counts where it exposes undefended images.

    >>> LinearReconstruction().name
    'linear'
    """

    name: ClassVar[str] = "linear"
    reference: ClassVar[str] = (
        "Wu, Chen, Guo and Weinberger, Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in "
        "Federated Learning, UAI 2023"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public", "defense"})
    min_public_images: ClassVar[int] = 100

    passes: int = 1
    """How often every public image is used, each time in another batch and with fresh noise."""
    features: int = 2048
    """The most features that are used; more are projected to this many at random."""

    def __post_init__(self) -> None:
        checks.integer("passes", self.passes, 1)
        checks.integer("features", self.features, 1, 4096)

    def least_public_images(self, samples: int) -> int:
        """Return what ten batches need, or more."""
        return max(self.min_public_images, _FEWEST_BATCHES * samples)

    def simulated_uploads(self, public: int, samples: int) -> int:
        """Return the uploads of all passes."""
        return self.passes * public // samples

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the batches by a regression that is fitted on simulated uploads.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Seed, progress and the simulator.

        Returns:
            A reconstruction of every victim; its objective is the regression's mean squared error on held-out
            public images. All victims have diverged if nothing can be learned from the simulated uploads, and
            one whose features are not finite has.
        """
        start = time.perf_counter()
        first, simulator = observations[0], options.simulator
        assert simulator is not None  # reconstruct has checked it
        labels = known_labels(observations, threat)
        features = UploadFeatures(
            first.task, first.samples, self.features, options.seed, uploads=len(observations)
        )
        with tensor_float32(False), torch.no_grad():
            fit, longest = self._fit(features, simulator, options, first)
            rows = torch.cat(
                [
                    features([o.gradient[part] for o in observations], labels[part])
                    for part in _parts(first.victims, _uploads_at_once(first))
                ]
            )
            finite = rows.flatten(1).isfinite().all(1)
            rows = torch.where(finite[:, None, None], rows, 0)
            images = fit(shortened(rows.flatten(0, 1), longest))
            images = images.view(*rows.shape[:2], *first.task.input_shape)
            mean = fit.target_mean.view(first.task.input_shape)
            failed = ~finite | (not math.isfinite(fit.error))
            images = torch.where(failed.view(-1, *[1] * (images.ndim - 1)), mean, images).clamp(0, 1)
        batch = (first.victims, first.samples, *first.task.input_shape)
        objective = torch.full((first.victims,), fit.error, dtype=images.dtype, device=images.device)
        objective = objective.masked_fill(failed, torch.inf)
        return Reconstruction(
            images.expand(batch).contiguous(),
            labels.to(images.device),
            objective,
            failed,
            time.perf_counter() - start,
        )

    def _fit(
        self, features: UploadFeatures, simulator: Simulator, options: RunOptions, observed: Observation
    ) -> tuple[RidgeFit, float]:
        """Return the regression, and the greatest length of its features."""
        total, batch = len(simulator.images), observed.samples
        order = torch.randperm(total, generator=torch.Generator().manual_seed(options.seed))
        held_out = max(batch, min(_MAX_HELD_OUT, int(_HELD_OUT * total)))
        sums: RidgeSums | None = None
        longest = torch.inf
        held: list[tuple[Tensor, Tensor]] = []
        done, all_images = 0, held_out + self.passes * (total - held_out)
        for x, y, seed, is_held in self._batches(simulator, order, held_out, batch, observed, options.seed):
            uploads = simulator.protect(x, y, seed)
            rows = features(uploads.gradients, y).flatten(0, 1)
            targets = x.to(rows) if len(rows) == y.numel() else x.to(rows).mean(1, keepdim=True)
            targets = targets.flatten(0, 1).flatten(1)
            finite = rows.isfinite().all(1)
            rows, targets = rows[finite], targets[finite]
            if sums is None:
                sums = RidgeSums(rows.shape[1], targets.shape[1], rows.device)
            if not sums.count and not is_held:
                longest = longest_allowed(rows)
            if is_held:
                held.append((rows, targets))
            else:
                sums.add(shortened(rows, longest), targets)
            done += y.numel()
            options.on_progress(min(done, all_images), all_images)
        assert sums is not None and held
        held_rows, held_targets = (torch.cat(column) for column in zip(*held, strict=True))
        return sums.solve(shortened(held_rows, longest), held_targets), longest

    def _batches(
        self,
        simulator: Simulator,
        order: Tensor,
        held_out: int,
        batch: int,
        observed: Observation,
        seed: int,
    ) -> Iterator[tuple[Tensor, Tensor, int, bool]]:
        """Yield images `[V, B, …]`, labels `[V, B]`, a seed, and whether they are held out from the fit.

        Every call has a seed of its own, since a defence may draw a client's noise by its place in a call.
        """
        generator = torch.Generator().manual_seed(seed)
        step, call = _uploads_at_once(observed), 0
        fitted = order[held_out:]
        for number in range(self.passes + 1):
            is_held = number == self.passes
            shuffled = torch.randperm(len(fitted), generator=generator)
            rows = order[:held_out] if is_held else fitted[shuffled]
            rows = rows[: len(rows) // batch * batch].view(-1, batch)
            for part in _parts(len(rows), step):
                indices = rows[part].to(simulator.images.device)
                x, y = simulator.images[indices], simulator.labels[indices]
                yield x, y, seed * 2**32 + call, is_held
                call += 1


def _uploads_at_once(observed: Observation) -> int:
    """Return how many uploads are read at a time, to bound memory."""
    return max(1, min(_SAMPLES_AT_ONCE // observed.samples, _VALUES_AT_ONCE // observed.task.size))


def _parts(count: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]
