"""Where a reconstruction begins to tell something: the paper's thresholds, and ours where it has none."""

import math
from dataclasses import dataclass, fields

from refiner import checks


@dataclass(frozen=True)
class Thresholds:
    """Where a reconstruction begins to tell something; the first four are the paper's ("Privacy protection").

    All four are shown; PSNR, SSIM and identification vote.

    >>> Thresholds().visible(psnr=16.0, ssim=0.3, lpips=0.2, noise=0.1)
    {'psnr': True, 'ssim': False, 'lpips': False, 'noise': True}
    """

    psnr: float = 15.0
    """Visible at or above, in dB."""
    ssim: float = 0.5
    """Visible at or above."""
    lpips: float = 0.05
    """Visible at or below. Has no vote: near-copies lie above it."""
    noise: float = 0.4
    """Visible at or below. Has no vote: a clean image of something else has 0."""
    psnr_margin: float = 1.0
    """Borderline from this far below the threshold, in dB."""
    ssim_margin: float = 0.05
    """Borderline from this far below the threshold."""
    identified: float = 0.01
    """Exposed if an image that knows nothing ranks as well with at most this probability."""
    suspicious: float = 0.05
    """Borderline likewise; with fewer than 1 / `suspicious` candidates identification has no vote."""
    exposed_share: float = 0.05
    """A group is exposed from this share of exposed victims on."""
    borderline_share: float = 0.2
    """A group is borderline from this share of victims that are not protected on."""

    def __post_init__(self) -> None:
        for field in fields(self):
            high = math.inf if field.name in ("psnr", "psnr_margin") else 1
            checks.number(field.name, getattr(self, field.name), 0, high)
        if not 0 < self.identified <= self.suspicious:
            raise checks.wrong(
                "identified", self.identified, f"a number in (0, suspicious = {self.suspicious:g}]"
            )

    def visible(self, *, psnr: float, ssim: float, lpips: float, noise: float) -> dict[str, bool]:
        """By each of the paper's thresholds alone: is something private visible?"""
        return {
            "psnr": psnr >= self.psnr,
            "ssim": ssim >= self.ssim,
            "lpips": lpips <= self.lpips,
            "noise": noise <= self.noise,
        }


PAPER = Thresholds()
