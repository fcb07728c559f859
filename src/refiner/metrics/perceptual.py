"""LPIPS v0.1 with AlexNet (Zhang et al., 2018): how different two images look to a network's layers."""

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.checks import integer
from refiner.core.precision import tensor_float32
from refiner.errors import DataError
from refiner.metrics.pairs import check_images, check_pair
from refiner.weights import frozen

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "lpips_alexnet.safetensors"
CHANNELS = (64, 192, 384, 256, 256)
# Below 31 pixels AlexNet's second pooling has nothing left; below 16 there is little left to enlarge.
SMALLEST, ENOUGH, ENLARGED = 16, 31, 32
# LPIPS has these for images in −1..1.
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


class PerceptualNetwork(nn.Module):
    """AlexNet's five convolutions and the learned weight of each of their channels.

    >>> PerceptualNetwork.bundled()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5760])
    """

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 11, stride=4, padding=2)
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        for number, channels in enumerate(CHANNELS, start=1):
            self.register_parameter(f"head{number}", nn.Parameter(torch.zeros(channels)))
        self.register_buffer("shift", torch.tensor(SHIFT)[:, None, None], persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE)[:, None, None], persistent=False)

    def layers(self, images: Tensor) -> list[Tensor]:
        """The output of each ReLU for images `[N, 1 or 3, H, W]` in 0..1."""
        hidden = (2 * images - 1 - self.shift) / self.scale
        found = [torch.relu(self.conv1(hidden))]
        found.append(torch.relu(self.conv2(F.max_pool2d(found[-1], 3, 2))))
        found.append(torch.relu(self.conv3(F.max_pool2d(found[-1], 3, 2))))
        found.append(torch.relu(self.conv4(found[-1])))
        found.append(torch.relu(self.conv5(found[-1])))
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Features `[N, D]`: the squared distance of two images' features is their LPIPS.

        Each position's channels are brought to length 1, times the square root of the learned weights, over
        the square root of the number of positions, so that a sum of squares is LPIPS' weighted spatial mean.
        """
        parts = []
        for number, hidden in enumerate(self.layers(images), start=1):
            length = hidden.square().sum(1, keepdim=True).sqrt()
            weight = self.get_parameter(f"head{number}").sqrt()[:, None, None]
            positions = hidden.shape[2] * hidden.shape[3]
            parts.append((hidden / (length + 1e-10) * weight / positions**0.5).flatten(1))
        return torch.cat(parts, dim=1)

    @classmethod
    def load(cls, path: Path) -> "PerceptualNetwork":
        """Read weights from safetensors; they are used in float32 and stay fixed."""
        return frozen(path, lambda weights: cls(), "those of LPIPS")

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "PerceptualNetwork":
        """The published weights, rounded to half precision; read once, one shared copy a device."""
        return _bundled(torch.device(device))


@cache
def _bundled(device: torch.device) -> PerceptualNetwork:
    return PerceptualNetwork.load(BUNDLED).to(device)


def features(images: Tensor, chunk: int = 256) -> Tensor:
    """Deep features `[N, D]` in float32 of images in 0..1, `chunk` at a time.

    The squared distance of two images' features is their LPIPS; D is 5,760 for 32×32.

    >>> a, b = features(torch.stack([torch.zeros(3, 32, 32), torch.ones(3, 32, 32)]))
    >>> torch.allclose((a - b).square().sum(), lpips(torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32)))
    True
    """
    chunk = integer("chunk", chunk, 1)
    return _features(_fit(check_images("images", images)), chunk)


def lpips(reconstructed: Tensor, original: Tensor, chunk: int = 256) -> Tensor:
    """LPIPS of each image, `[N]`: 0 for a copy, growing with the difference, seldom above 1.

    An image of 31 pixels a side or more is shown to the network as it is, 32×32 too, as published figures on
    CIFAR do: the last three layers then see one position only, and values are not those of the same scene at
    64×64. A smaller one (28×28), which AlexNet can't take, is enlarged until its shorter side has 32 pixels,
    bilinearly; below 16 it is refused. A grey image is shown as three equal channels.

    >>> lpips(torch.ones(1, 3, 32, 32), torch.ones(1, 3, 32, 32))
    tensor([0.])
    """
    chunk = integer("chunk", chunk, 1)
    reconstructed, original = (_fit(images) for images in check_pair(reconstructed, original))
    parts = zip(torch.split(reconstructed, chunk), torch.split(original, chunk), strict=True)
    return torch.cat([(_features(a, chunk) - _features(b, chunk)).square().sum(1) for a, b in parts])


@torch.no_grad()
def _features(images: Tensor, chunk: int) -> Tensor:
    network = PerceptualNetwork.bundled(images.device)
    with tensor_float32(False):
        return torch.cat([network(part) for part in torch.split(images, chunk)])


def _fit(images: Tensor) -> Tensor:
    """Checked images as the network takes them."""
    _, channels, height, width = images.shape
    if channels not in (1, 3) or min(height, width) < SMALLEST:
        raise DataError(
            f"image shape = {(channels, height, width)}: LPIPS takes 1 or 3 channels "
            f"and {SMALLEST} or more pixels a side"
        )
    images = images.float()
    if min(height, width) < ENOUGH:
        factor = ENLARGED / min(height, width)
        size = (round(height * factor), round(width * factor))
        images = F.interpolate(images, size, mode="bilinear", align_corners=False)
    return images.expand(-1, 3, -1, -1)
