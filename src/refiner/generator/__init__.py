"""The image generator of the GGL attack: its network, its training, its samples."""

from refiner.generator.discriminator import Discriminator
from refiner.generator.network import Generator
from refiner.generator.public_images import load_public_images
from refiner.generator.sample_grid import sample_images, write_sample_grid
from refiner.generator.training import GANTrainingSettings, train

__all__ = [
    "Discriminator",
    "GANTrainingSettings",
    "Generator",
    "load_public_images",
    "sample_images",
    "train",
    "write_sample_grid",
]
