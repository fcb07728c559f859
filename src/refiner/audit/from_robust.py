"""What can be reached from the robust data themselves.

A network that is trained on other images estimates the originals from the exact robust data and their labels.
It is a lower bound of the best estimator. Where every upload is a function of robust data and label alone, no
attack on any number of uploads does better than that estimator; the upload of a searched batch says more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Observation, Simulator
from refiner.attacks.learning.network_training import TrainingSettings, TrainingState
from refiner.attacks.learning.simulated_batches import derive_seed, draw_batches, simulate
from refiner.attacks.matching.checkpoint import fingerprint
from refiner.attacks.stages.frequency_filter import FrequencyFilter
from refiner.attacks.stages.restoration import train_restorer
from refiner.audit.result_records import FromRobust
from refiner.audit.upload_match import match_uploads
from refiner.errors import DataError
from refiner.metrics import identify, identify_by_likelihood, psnr
from refiner.shaped_noise import NaturalNoise, identify_under_noise

# One public image in so many is held out of the training.
_HELD_OUT = 20
_MIN_PUBLIC_IMAGES = 64
# The likelihood match from robust data: images whose robust data show the noise.
_NOISY_IMAGES = 4000


@dataclass(frozen=True)
class RobustEstimation:
    """How the network is trained that estimates images from robust data.

    Args:
        epochs: Passes over the pairs of robust image and image.
        batch: Pairs in a training step.
        lr: The greatest learning rate of AdamW.
        width: Channels of the U-Net's finest level, a multiple of 8.
        draws: Pairs for every public image, each with another secret.

    Raises:
        SettingError: A setting is out of range.

    >>> RobustEstimation.for_device(torch.device("cpu")).width
    16
    """

    epochs: int = 10
    batch: int = 256
    lr: float = 1e-3
    width: int = 64
    draws: int = 2

    def __post_init__(self) -> None:
        self.training()
        checks.integer("draws", self.draws, 1)
        if checks.integer("width", self.width, 8) % 8:
            raise checks.wrong("width", self.width, "a multiple of 8")

    def training(self) -> TrainingSettings:
        """Return the settings of the training."""
        return TrainingSettings(self.epochs, self.batch, self.lr)

    @staticmethod
    def least_public_images(samples: int) -> int:
        """Return the fewest public images that it can learn from, for batches of `samples`."""
        return max(_MIN_PUBLIC_IMAGES, 4 * samples)

    @classmethod
    def for_device(cls, device: torch.device) -> "RobustEstimation":
        """Return settings that take minutes: those of the published results on a GPU, fewer on a CPU."""
        return cls() if device.type == "cuda" else cls(epochs=5, batch=64, width=16, draws=1)


def estimate_from_robust(
    simulator: Simulator,
    observation: Observation,
    robust: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    others: Tensor | None = None,
    noise: NaturalNoise | None = None,
    settings: RobustEstimation | None = None,
    seed: int = 0,
    resume: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> FromRobust:
    """Return how well images can be estimated and identified from their exact robust data.

    Args:
        simulator: Public images, and the defence as an attacker runs it on them.
        observation: The victims' uploads.
        robust: The victims' robust data `[V, B, C, H, W]`.
        x: The victims' images in 0..1, `[V, B, C, H, W]`.
        y: Their labels `[V, B]`.
        others: Further candidates `[M, C, H, W]` for identification, no victims among them.
        noise: The defence's noise, if its covariance is known.
        settings: How the network is trained; None for settings that suit the device.
        seed: Seed of the attacker's draws.
        resume: A file for the state of the training.
        on_progress: Called with the pairs done and their total.

    Returns:
        PSNR and identification of the network's estimates, the PSNR of the best linear filter, and the
        identification by likelihood among known candidates, from robust data and from uploads. From robust
        data it is by the covariance of simulated noise or by the one known, whichever finds more. If the
        training diverged, nothing of the network.

    Raises:
        DataError: There are too few public images, or the defence makes no robust data.
    """
    settings = settings or RobustEstimation.for_device(x.device)
    samples = y.shape[1]
    least = settings.least_public_images(samples)
    simulator.check(observation.task, least, "the estimate from robust data", samples)
    pairs = _pairs(simulator, observation.task.size, samples, settings.draws, seed, x.device)
    total = settings.epochs * (len(pairs.clean) - pairs.held_out)
    identity = {} if resume is None else _fingerprints(simulator, robust, settings, seed)
    restorer = train_restorer(
        pairs.degraded,
        pairs.clean,
        pairs.labels,
        classes=observation.task.classes,
        held_out=pairs.held_out,
        width=settings.width,
        settings=settings.training(),
        seed=derive_seed(seed, "from robust", "training"),
        state=TrainingState(resume, identity),
        on_samples=lambda done: on_progress(done, total),
    )
    original = x.flatten(0, 1).float()
    noisy = robust.flatten(0, 1).to(original)
    candidates = original if others is None else torch.cat([original, others.to(original)])
    reached = top1 = None
    if restorer is None:
        kept = len(pairs.clean) - pairs.held_out
        linear = FrequencyFilter.fit(pairs.degraded[:kept], pairs.clean[:kept])
    else:
        linear = restorer.linear
        estimate = restorer(noisy, y.flatten()).clamp(0, 1)
        reached = float(psnr(estimate, original).mean())
        top1 = identify(estimate, original, others=others).top1 if len(candidates) > 1 else None
    wiener = float(psnr(linear(noisy).clamp(0, 1), original).mean())
    if len(candidates) < 2:
        return FromRobust(reached, None, wiener)
    return FromRobust(
        reached,
        top1,
        wiener,
        _likelihood_match(noisy, candidates, (pairs.degraded - pairs.clean)[-_NOISY_IMAGES:], noise),
        match_uploads(simulator, observation, x, y, seed=seed) if samples == 1 else None,
    )


def _likelihood_match(
    noisy: Tensor, candidates: Tensor, residuals: Tensor, noise: NaturalNoise | None
) -> float:
    flat = (t.flatten(1).to(candidates) for t in (noisy, candidates, residuals))
    simulated = identify_by_likelihood(*flat).top1
    return simulated if noise is None else max(simulated, identify_under_noise(noisy, candidates, noise).top1)


def robust_state_file(state_file: Path) -> Path:
    """Return where the training saves its state, beside the state of the attack.

    >>> robust_state_file(Path("out/a.state.safetensors")).name
    'a.state.robust.safetensors'
    """
    return state_file.with_suffix(f".robust{state_file.suffix}")


@dataclass(frozen=True, eq=False)
class _Pairs:
    degraded: Tensor
    clean: Tensor
    labels: Tensor
    held_out: int
    """How many of the last pairs are of images that no other pair has."""


def _pairs(
    simulator: Simulator, values: int, samples: int, draws: int, seed: int, device: torch.device
) -> _Pairs:
    """Robust images of simulated clients beside their originals, those held out last."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "from robust", "images"))
    shuffled = torch.randperm(len(simulator.images), generator=generator)
    held_out = max(samples, len(shuffled) // _HELD_OUT)
    robust, numbers, count = [], [], 0
    for part, images in (("training", shuffled[held_out:]), ("held out", shuffled[:held_out])):
        # As many passes as draws, whatever the batch size: each has every image once.
        passes = draw_batches(images, samples, draws, generator)[:draws]
        for _, uploads in simulate(simulator, passes, derive_seed(seed, "from robust", part), values):
            if uploads.robust is None:
                raise DataError(field="from_robust", value=True, problem="this defence makes no robust data")
            robust.append(uploads.robust.flatten(0, 1).to(device).float())
        numbers.append(torch.cat([batches.flatten() for batches in passes]))
        count = len(numbers[-1])
    chosen = torch.cat(numbers)
    clean = simulator.images[chosen.to(simulator.images.device)].to(device).float()
    labels = simulator.labels[chosen.to(simulator.labels.device)].to(device)
    return _Pairs(torch.cat(robust), clean, labels, count)


def _fingerprints(
    simulator: Simulator, robust: Tensor, settings: RobustEstimation, seed: int
) -> dict[str, str]:
    return {
        "settings": fingerprint(settings),
        "seed": fingerprint(seed),
        "robust data": fingerprint(tensors=[robust]),
        "public images": fingerprint(tensors=[simulator.images, simulator.labels]),
    }
