"""The thresholds of the verdicts: the paper's where it has them, the project's own elsewhere."""

import math
from dataclasses import dataclass, fields

from refiner import checks


@dataclass(frozen=True)
class Thresholds:
    """From which score on a reconstruction reveals something; the first four are the paper's.

    All of the paper's thresholds ("Privacy protection") are reported. PSNR, SSIM and identification determine
    the verdict.

    >>> Thresholds().visible(psnr=16.0, ssim=0.3, lpips=0.2, noise=0.1)
    {'psnr': True, 'ssim': False, 'lpips': False, 'noise': True}
    """

    psnr: float = 15.0
    """Visible at or above, in dB."""
    ssim: float = 0.5
    """Visible at or above."""
    lpips: float = 0.05
    """Visible at or below. Not part of the verdict: near-copies score above it."""
    noise: float = 0.4
    """Visible at or below. Not part of the verdict: a clean image of something else scores 0."""
    psnr_margin: float = 1.0
    """Borderline from this far below the threshold, in dB."""
    ssim_margin: float = 0.05
    """Borderline from this far below the threshold."""
    identified: float = 0.01
    """Exposed if an unrelated image ranks as well with at most this probability."""
    suspicious: float = 0.05
    """Borderline likewise; identification is ignored with fewer than 1 / `suspicious` candidates."""
    exposed_share: float = 0.05
    """A group is exposed if at least this fraction of its victims is."""
    borderline_share: float = 0.2
    """A group is borderline if at least this fraction of its victims is not protected."""

    def __post_init__(self) -> None:
        for field in fields(self):
            high = math.inf if field.name in ("psnr", "psnr_margin") else 1
            checks.number(field.name, getattr(self, field.name), 0, high)
        if not 0 < self.identified <= self.suspicious:
            raise checks.wrong(
                "identified", self.identified, f"a number in (0, suspicious = {self.suspicious:g}]"
            )

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
