"""A generator of small images: its shape, its training, its samples."""

from refiner.generator.discriminator import Discriminator
from refiner.generator.network import Generator
from refiner.generator.public import load_public
from refiner.generator.samples import samples, write_samples
from refiner.generator.training import Training, train

__all__ = ["Discriminator", "Generator", "Training", "load_public", "samples", "train", "write_samples"]
