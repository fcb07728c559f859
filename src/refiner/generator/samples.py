"""Images of every class from fixed latents, to look at."""

from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.data import write_sheet
from refiner.generator.network import Generator


@torch.no_grad()
def samples(generator: Generator, each: int = 10, seed: int = 0, batch: int = 500) -> Tensor:
    """`each` images of every class, class by class, as uint8 [classes · each, 3, 32, 32].

    >>> samples(Generator(latent=16, width=8).eval(), each=2).shape
    torch.Size([20, 3, 32, 32])
    """
    checks.integer("each", each, 1)
    device = generator.start.weight.device
    y = torch.arange(generator.classes).repeat_interleave(each)
    z = generator.draw(y, seed)
    parts = zip(torch.split(z, batch), torch.split(y, batch), strict=True)
    made = torch.cat([generator(part.to(device), labels.to(device)).cpu() for part, labels in parts])
    return (255 * made).round().to(torch.uint8)


def write_samples(path: Path, generator: Generator, each: int = 10, seed: int = 0) -> Path:
    """Write them as a sheet with a row for each class.

    >>> import tempfile
    >>> from refiner.data import read_sheet
    >>> generator = Generator(latent=4, classes=3, width=2).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sheet = read_sheet(write_samples(Path(folder) / "sheet.png", generator, each=2), 6, 32, columns=2)
    >>> torch.equal(sheet, samples(generator, each=2))
    True
    """
    return write_sheet(path, samples(generator, each, seed), columns=each)
