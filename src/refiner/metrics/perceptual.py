"""LPIPS v0.1 with AlexNet: how different two images look to the layers of a network."""

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.checks import integer
from refiner.core.precision import tensor_float32
from refiner.errors import DataError
from refiner.metrics.image_checks import check_images, check_pair
from refiner.weights import load_frozen

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "lpips_alexnet.safetensors"
CHANNELS = (64, 192, 384, 256, 256)
# AlexNet's second pooling needs 31 pixels. Smaller images are enlarged to 32, down to a limit of 16.
MIN_SIDE, ALEXNET_MIN_SIDE, ENLARGED_SIDE = 16, 31, 32
# LPIPS' normalisation of images in −1..1.
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


class PerceptualNetwork(nn.Module):
    """AlexNet's five convolutions and the learned weight of each of their channels.

    Zhang, Isola, Efros, Shechtman and Wang, "The Unreasonable Effectiveness of Deep Features as a Perceptual
    Metric", CVPR 2018.

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
        """Return the output of each ReLU for images `[N, 1 or 3, H, W]` in 0..1."""
        hidden = (2 * images - 1 - self.shift) / self.scale
        outputs = [torch.relu(self.conv1(hidden))]
        outputs.append(torch.relu(self.conv2(F.max_pool2d(outputs[-1], 3, 2))))
        outputs.append(torch.relu(self.conv3(F.max_pool2d(outputs[-1], 3, 2))))
        outputs.append(torch.relu(self.conv4(outputs[-1])))
        outputs.append(torch.relu(self.conv5(outputs[-1])))
        return outputs

    def forward(self, images: Tensor) -> Tensor:
        """Return features `[N, D]`: the squared distance of two images' features is their LPIPS.

        The channels of each position are normalised to norm 1, multiplied by the square root of the learned
        weights and divided by the square root of the number of positions, so that a sum of squares is LPIPS'
        weighted spatial mean.
        """
        parts = []
        for number, hidden in enumerate(self.layers(images), start=1):
            norm = hidden.square().sum(1, keepdim=True).sqrt()
            weight = self.get_parameter(f"head{number}").sqrt()[:, None, None]
            positions = hidden.shape[2] * hidden.shape[3]
            parts.append((hidden / (norm + 1e-10) * weight / positions**0.5).flatten(1))
        return torch.cat(parts, dim=1)

    @classmethod
    def load(cls, path: Path) -> "PerceptualNetwork":
        """Return the network with weights from a safetensors file, in float32 and frozen."""
        return load_frozen(path, lambda weights: cls(), "those of LPIPS")

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "PerceptualNetwork":
        """Return the published weights, rounded to half precision; one shared copy for each device."""
        return _bundled(torch.device(device))


@cache
def _bundled(device: torch.device) -> PerceptualNetwork:
    return PerceptualNetwork.load(BUNDLED).to(device)


def features(images: Tensor, chunk: int = 256) -> Tensor:
    """Return the deep features of each image: the squared distance of two images' features is their LPIPS.

    Args:
        images: `[N, C, H, W]` in 0..1; see `lpips` for the sizes.
        chunk: Images at a time.

    Returns:
        float32 `[N, D]`; D is 5,760 for 32×32.

    >>> a, b = features(torch.stack([torch.zeros(3, 32, 32), torch.ones(3, 32, 32)]))
    >>> torch.allclose((a - b).square().sum(), lpips(torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32)))
    True
    """
    chunk = integer("chunk", chunk, 1)
    return _features(_to_network_input(check_images("images", images)), chunk)


def lpips(reconstructed: Tensor, original: Tensor, chunk: int = 256) -> Tensor:
    """Return the LPIPS of each image: 0 for a copy, higher for a greater difference, rarely above 1.

    Zhang, Isola, Efros, Shechtman and Wang, "The Unreasonable Effectiveness of Deep Features as a Perceptual
    Metric", CVPR 2018. An image of at least 31 pixels per side is not resized, as in published figures on
    CIFAR. At 32×32 the last three layers have one position only, and values are not comparable with those of
    the same scene at 64×64. A smaller image (28×28), which AlexNet can't take, is enlarged bilinearly until
    its shorter side has 32 pixels.

    Args:
        reconstructed: `[N, C, H, W]` in 0..1, with 1 or 3 channels and at least 16 pixels per side. A grey
            image is repeated to three channels.
        original: `[N, C, H, W]` in 0..1; the n-th reconstruction belongs to the n-th original.
        chunk: Images at a time.

    Returns:
        float32 `[N]`.

    >>> lpips(torch.ones(1, 3, 32, 32), torch.ones(1, 3, 32, 32))
    tensor([0.])
    """
    chunk = integer("chunk", chunk, 1)
    reconstructed, original = (_to_network_input(images) for images in check_pair(reconstructed, original))
    parts = zip(torch.split(reconstructed, chunk), torch.split(original, chunk), strict=True)
    return torch.cat([(_features(a, chunk) - _features(b, chunk)).square().sum(1) for a, b in parts])


@torch.no_grad()
def _features(images: Tensor, chunk: int) -> Tensor:
    network = PerceptualNetwork.bundled(images.device)
    with tensor_float32(False):
        return torch.cat([network(part) for part in torch.split(images, chunk)])


def _to_network_input(images: Tensor) -> Tensor:
    """Checked images with three channels and at least AlexNet's minimum size."""
    _, channels, height, width = images.shape
    if channels not in (1, 3) or min(height, width) < MIN_SIDE:
        expected = f"1 or 3 channels and at least {MIN_SIDE} pixels per side for LPIPS"
        raise DataError(field="image shape", value=(channels, height, width), expected=expected)
    images = images.float()
    if min(height, width) < ALEXNET_MIN_SIDE:
        factor = ENLARGED_SIDE / min(height, width)
        size = (round(height * factor), round(width * factor))
        images = F.interpolate(images, size, mode="bilinear", align_corners=False)
    return images.expand(-1, 3, -1, -1)
