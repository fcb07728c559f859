"""Generated images of every class from fixed latents, for inspection."""

from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.data import write_image_grid
from refiner.generator.network import Generator


@torch.no_grad()
def sample_images(generator: Generator, each: int = 10, seed: int = 0, batch: int = 500) -> Tensor:
    """Return generated images of every class, class by class.

    Args:
        generator: The generator, in `eval` mode.
        each: Images of each class.
        seed: Seed of the latents.
        batch: Images generated at a time.

    Returns:
        uint8 `[classes · each, 3, 32, 32]`.

    >>> sample_images(Generator(latent=16, width=8).eval(), each=2).shape
    torch.Size([20, 3, 32, 32])
    """
    checks.integer("each", each, 1)
    device = generator.start.weight.device
    y = torch.arange(generator.classes).repeat_interleave(each)
    z = generator.draw(y, seed)
    batches = zip(torch.split(z, batch), torch.split(y, batch), strict=True)
    images = torch.cat(
        [generator(latents.to(device), labels.to(device)).cpu() for latents, labels in batches]
    )
    return (255 * images).round().to(torch.uint8)


def write_sample_grid(path: Path, generator: Generator, each: int = 10, seed: int = 0) -> Path:
    """Write generated images as one file with a row for each class.

    Args:
        path: A `.png` or `.webp` file.
        generator: The generator, in `eval` mode.
        each: Images of each class.
        seed: Seed of the latents.

    Returns:
        The path.

    >>> import tempfile
    >>> from refiner.data import read_image_grid
    >>> generator = Generator(latent=4, classes=3, width=2).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_sample_grid(Path(folder) / "samples.png", generator, each=2)
    ...     grid = read_image_grid(path, 6, 32, columns=2)
    >>> torch.equal(grid, sample_images(generator, each=2))
    True
    """
    return write_image_grid(path, sample_images(generator, each, seed), columns=each)
