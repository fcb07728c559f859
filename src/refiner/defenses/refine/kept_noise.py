"""`KeptNoise`: the noise of one `Refiner`, the same for an image in all of its uploads."""

import copy
import hmac
from functools import lru_cache
from pathlib import Path

import torch

from refiner.core.noise import NoiseSource
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.shaped_noise import NaturalNoise

# The start and α whose noise is keyed by the secret alone: what Refiner.paper() uploaded before there were
# other starts must stay the same bit for bit. All other settings are part of the key.
_PAPER_NOISE = ("blend", 0.5)


class KeptNoise:
    """The source of a defence's draws, and the statistics of shaped noise as they were when it was made.

    Args:
        settings: The settings of the defence, with its secret; without one a key is drawn.

    Raises:
        DataError: The file of statistics is missing or damaged.

    >>> first, second = (KeptNoise(RefinerSettings(secret=bytes(32), alpha=a)).source for a in (2.0, 3.0))
    >>> torch.equal(first.key, second.key)
    False
    """

    def __init__(self, settings: RefinerSettings) -> None:
        self.statistics: NaturalNoise | None = None
        """The statistics of shaped noise, without its white part; None with another start."""
        if settings.start == "natural":
            file = settings.statistics
            self.statistics = NaturalNoise.bundled() if file is None else NaturalNoise.load(Path(file))
        self.source = NoiseSource(_key(settings, self.statistics))
        self._white, self._strength = settings.white, settings.alpha

    def for_shape(self, shape: tuple[int, ...], device: torch.device) -> NaturalNoise | None:
        """Return shaped noise with its white part for inputs of a shape; None with another start.

        Raises:
            DataError: There are no statistics for inputs of this shape.
        """
        return None if self.statistics is None else noise_for(self.statistics, shape, device, self._white)

    def guarantee(self) -> str:
        """Return what shaped noise proves of all uploads that depend on noisy images only, as one sentence.

        x + s·n is a Gaussian mechanism in the metric in which the noise is white. Since n is kept, this holds
        for any number of uploads of an image together, whatever models they were made with. How weak it is
        follows from the statistics: the distance at which two random images like those lie.
        """
        assert self.statistics is not None
        _, height, width = self.statistics.shape
        distance = self.statistics.with_white(self._white).distance_between(self.statistics)
        return (
            "all uploads of an image together are a Gaussian mechanism: two images at a distance d in the "
            f"noise's metric are {1 / self._strength:.2g}·d-Gaussian-DP; weak, since two random images of "
            f"{height} × {width} pixels like those of its statistics are about {distance:.0f} apart, larger "
            "ones more, and it does not cover changed copies of an image or labels"
        )


def _key(settings: RefinerSettings, statistics: NaturalNoise | None) -> bytes | None:
    """The key of the draws: another one for other noise, as from x + 3n and x + 2n follows x."""
    if settings.secret is None or (settings.start, settings.alpha) == _PAPER_NOISE:
        return settings.secret
    parts = [settings.start, repr(float(settings.alpha))]
    if statistics is not None:
        parts += [repr(float(settings.white)), statistics.digest()]
    return hmac.digest(settings.secret, f"refiner noise {' '.join(parts)}".encode(), "sha256")


@lru_cache(maxsize=8)
def noise_for(
    statistics: NaturalNoise, shape: tuple[int, ...], device: torch.device, white: float
) -> NaturalNoise:
    """The noise of some statistics and a white part for inputs of a shape; made once."""
    return copy.deepcopy(statistics).to(device).for_shape(shape).with_white(white)
