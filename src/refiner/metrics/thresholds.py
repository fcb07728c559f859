"""The thresholds of the verdicts: the paper's where it has them, the project's own elsewhere."""

import math
from dataclasses import dataclass, fields

from refiner import checks


@dataclass(frozen=True)
class Thresholds:
    """From which score on a reconstruction is visible or identifiable; the first four are the paper's.

    A score makes a reconstruction visible only if it also exceeds that of the image's blind guess by a
    margin.

    >>> Thresholds().visible(psnr=16.0, ssim=0.3, lpips=0.2, noise=0.1)
    {'psnr': True, 'ssim': False, 'lpips': False, 'noise': True}
    """

    psnr: float = 15.0
    """Visible at or above, in dB."""
    ssim: float = 0.5
    """Visible at or above."""
    lpips: float = 0.05
    """Visible at or below."""
    noise: float = 0.4
    """Visible at or below. Not part of the verdict: a clean image of something else scores 0."""
    psnr_margin: float = 1.0
    """By how much a visible reconstruction's PSNR exceeds the blind guess's, in dB."""
    ssim_margin: float = 0.05
    """By how much its SSIM exceeds the blind guess's."""
    lpips_margin: float = 0.05
    """By how much its LPIPS is below the blind guess's."""
    structure: float = 0.4
    """The lowest SSIM at which PSNR counts: a blur of the right colours, as a 4×4 thumbnail, scores 17 dB."""
    identified: float = 0.01
    """The highest probability of identifying an image by chance at which identification counts: with fewer
    than 1 / `identified` candidates it does not."""
    visible_share: float = 0.05
    """The fraction of visible images from which on a defence as a whole is visible."""

    def __post_init__(self) -> None:
        for field in fields(self):
            high = math.inf if field.name in ("psnr", "psnr_margin") else 1
            checks.number(field.name, getattr(self, field.name), 0, high)
        checks.number("identified", self.identified, 0, 1, above=True)

    def visible(self, *, psnr: float, ssim: float, lpips: float, noise: float) -> dict[str, bool]:
        """Return whether private content is visible by each of the paper's thresholds alone.

        Args:
            psnr: PSNR of the reconstruction, in dB.
            ssim: SSIM of the reconstruction.
            lpips: LPIPS of the reconstruction.
            noise: Noise ratio of the reconstruction.

        Returns:
            A flag for each score, by name.
        """
        return {
            "psnr": psnr >= self.psnr,
            "ssim": ssim >= self.ssim,
            "lpips": lpips <= self.lpips,
            "noise": noise <= self.noise,
        }


PAPER_THRESHOLDS = Thresholds()
