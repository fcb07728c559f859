"""What the best linear estimator recovers of noisy images: a prediction for the user's own data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError
from refiner.metrics import blind_guess, judge_each, psnr, ssim
from refiner.shaped_noise.cosine_transform import dct, inverse_dct
from refiner.shaped_noise.natural_noise import NaturalNoise

# An estimate that exceeds the images' own mean colour by more than this shows content.
_MARGIN = 0.5
# The largest share of visible images that is not warned about.
_MOST_VISIBLE = 0.05
MIN_PREDICTED = 200
"""The fewest images that a prediction is made from."""


@dataclass(frozen=True)
class Prediction:
    """What is left of images x when an attacker knows x + s·n exactly; PSNRs are means in dB."""

    strength: float
    wiener_psnr: float
    """The best linear estimate from x + s·n, of an attacker who knows the covariance of such images."""
    own_colour_psnr: float
    """Each image's own mean colour: a guess that shows no content."""
    mean_image_psnr: float
    """The mean of the images: a guess that uses no gradient."""
    whitened_distance: float
    """The mean distance of two of the images in units of the noise of strength 1."""
    visible: float
    """The share of images whose best linear estimate is visible, as an audit judges by PSNR and SSIM."""

    @property
    def summary(self) -> str:
        """One sentence with the figures."""
        return (
            f"from such noisy images themselves a linear estimate reaches {self.wiener_psnr:.1f} dB and "
            f"shows {self.visible:.0%} of them; a blind guess scores "
            f"{max(self.own_colour_psnr, self.mean_image_psnr):.1f} dB"
        )

    @property
    def warning(self) -> str | None:
        """One sentence if the noise is too weak for these images or does not fit them, else None."""
        excess = self.wiener_psnr - max(self.own_colour_psnr, self.mean_image_psnr)
        if excess > _MARGIN:
            return (
                f"noise of strength {self.strength:g} leaves {self.wiener_psnr:.1f} dB of these images, "
                f"{excess:.1f} dB more than a blind guess: raise Refiner's alpha or white, or, if they are "
                "unlike photographs, fit the statistics of the noise with `refiner noise fit`"
            )
        if self.visible > _MOST_VISIBLE:
            return (
                f"noise of strength {self.strength:g} leaves {self.visible:.0%} of these images visible to a "
                "linear estimate: raise Refiner's alpha or white"
            )
        return None


def wiener_estimate(noisy: Tensor, images: NaturalNoise, noise: Tensor) -> Tensor:
    """Return the best linear estimate of images from noisy ones.

    Args:
        noisy: `[N, C, H, W]`.
        images: The statistics of such images.
        noise: The covariance of the noise at every frequency, `[H, W, C, C]`.

    Returns:
        `[N, C, H, W]` in 0..1.
    """
    gain = torch.linalg.solve(images.covariance + noise, images.covariance).mT
    coefficients = dct(noisy - images.mean).movedim(-3, -1)[..., None]
    estimate = inverse_dct((gain @ coefficients)[..., 0].movedim(-1, -3))
    return (estimate + images.mean).clamp(0, 1)


def predict_psnr(
    images: Tensor,
    statistics: NaturalNoise | None = None,
    *,
    strength: float = 3.0,
    white: float = 0.8,
    seed: int = 0,
) -> Prediction:
    """Return what the best linear estimate recovers of your own images under noise of a given strength.

    Half of the images give the attacker's statistics, the other half is protected and estimated.

    Args:
        images: `[N, C, H, W]` in 0..1, at least 200.
        statistics: Those of the noise; None for the bundled ones.
        strength: s of x + s·n.
        white: The standard deviation of a white part of n.
        seed: Seed of the noise.

    Returns:
        The prediction, and the blind guesses to compare it with.

    Raises:
        DataError: The images are too few or don't fit the statistics.

    >>> from refiner.data import load_sample
    >>> prediction = predict_psnr(load_sample().images, strength=3)
    >>> prediction.wiener_psnr < prediction.own_colour_psnr + 0.5, prediction.warning is None
    (True, True)
    """
    checks.number("strength", strength, 0, 100)
    checks.number("white", white, 0, 100)
    checks.integer("seed", seed, 0, 2**63 - 1)
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise checks.wrong("images", images, "a floating-point tensor [N, C, H, W]")
    if len(images) < MIN_PREDICTED:
        raise DataError(field="images", value=len(images), expected="200 images or more")
    public, private = images[::2], images[1::2]
    data = NaturalNoise.fit(public)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    noise = (statistics or NaturalNoise.bundled(images.device)).for_shape(shape).with_white(white)
    generator = torch.Generator(images.device).manual_seed(seed)
    draws = torch.randn(private.shape, generator=generator, device=images.device, dtype=images.dtype)
    estimate = wiener_estimate(private + strength * noise(draws), data, strength**2 * noise.covariance)
    reached, blind = psnr(estimate, private), blind_guess(private, public)
    verdicts = judge_each(
        reached,
        ssim(estimate, private),
        blind_psnr=blind.best,
        blind_ssim=blind_guess(private, public, "ssim").best,
    )
    pairs = noise.whiten(private[: len(private) // 2] - private[-(len(private) // 2) :])
    return Prediction(
        strength,
        float(reached.mean()),
        float(blind.scores["own colour"].mean()),
        float(blind.scores["mean image"].mean()),
        float(pairs.flatten(1).norm(dim=1).mean()),
        sum(verdict.level == "visible" for verdict in verdicts) / len(verdicts),
    )
