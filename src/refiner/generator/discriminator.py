"""The discriminator, which scores how real an image looks for its label; used in training only."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from refiner import checks


class SpectralNorm(nn.Module):
    """Divides a weight by its largest singular value, estimated with one power iteration per call.

    Miyato, Kataoka, Koyama and Yoshida, "Spectral Normalization for Generative Adversarial Networks", ICLR
    2018. PyTorch's own computes in bfloat16 under autocast; this one always computes in float32.

    >>> layer = spectral(nn.Linear(4, 3))
    >>> for _ in range(50):
    ...     weight = layer.weight.detach()
    >>> round(torch.linalg.matrix_norm(weight, 2).item(), 3)
    1.0
    """

    left: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("left", F.normalize(torch.randn(rows), dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with spectral norm 1."""
        with torch.autocast(weight.device.type, enabled=False):
            matrix = weight.flatten(1)
            with torch.no_grad():
                right = F.normalize(self.left @ matrix, dim=0)
                left = F.normalize(matrix @ right, dim=0)
                if self.training:
                    self.left.copy_(left)
            return weight / (left @ matrix @ right)


def spectral(layer: nn.Conv2d | nn.Linear | nn.Embedding) -> nn.Module:
    """Return `layer` with a Xavier-uniform initial weight under `SpectralNorm`."""
    nn.init.xavier_uniform_(layer.weight)
    return parametrize.register_parametrization(layer, "weight", SpectralNorm(len(layer.weight)))


class DownBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut; halves the side if `half`.

    >>> DownBlock(3, 8, half=True)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(self, inputs: int, outputs: int, *, half: bool) -> None:
        super().__init__()
        # A ReLU before the very first convolution would remove half of the colour range.
        self.first = inputs == 3
        self.pool: nn.Module = nn.AvgPool2d(2) if half else nn.Identity()
        self.conv1 = spectral(nn.Conv2d(inputs, outputs, 3, padding=1))
        self.conv2 = spectral(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = spectral(nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features for the next block."""
        hidden: Tensor = self.conv1(x if self.first else torch.relu(x))
        out: Tensor = self.pool(self.conv2(torch.relu(hidden)) + self.shortcut(x))
        return out


class Discriminator(nn.Module):
    """Four residual blocks, the sum over all positions, and a score that depends on the label.

    The score is a linear layer's output plus the inner product of the features with the label's embedding
    (Miyato and Koyama, "cGANs with Projection Discriminator", ICLR 2018).

    Args:
        classes: The number of labels.
        width: Channels of every block.

    >>> Discriminator(width=8)(torch.rand(2, 3, 32, 32), torch.tensor([3, 7])).shape
    torch.Size([2])
    """

    def __init__(self, classes: int = 10, width: int = 128) -> None:
        super().__init__()
        checks.integer("classes", classes, 1)
        checks.integer("width", width, 1)
        self.blocks = nn.Sequential(
            DownBlock(3, width, half=True),
            DownBlock(width, width, half=True),
            DownBlock(width, width, half=False),
            DownBlock(width, width, half=False),
        )
        self.score = spectral(nn.Linear(width, 1))
        self.table = spectral(nn.Embedding(classes, width))

    def forward(self, images: Tensor, y: Tensor) -> Tensor:
        """Return scores `[B]` of images `[B, 3, 32, 32]` in 0..1 with labels `[B]`, high for real images."""
        centred = (2 * images - 1).contiguous(memory_format=torch.channels_last)
        # The hinge loss needs scores near ±1 more precisely than bfloat16 under autocast has them.
        features = torch.relu(self.blocks(centred)).to(images.dtype).sum((2, 3))
        with torch.autocast(images.device.type, enabled=False):
            score: Tensor = self.score(features).squeeze(1) + (self.table(y) * features).sum(1)
        return score
