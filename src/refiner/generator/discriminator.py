"""The discriminator: does an image look real for its label? Needed in training only."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from refiner import checks


class SpectralNorm(nn.Module):
    """A weight over its largest singular value, which one power step a call follows (Miyato et al. 2018).

    Torch's own takes that step in bfloat16 under autocast; this one stays in float32.

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
        """The weight at norm 1."""
        with torch.autocast(weight.device.type, enabled=False):
            matrix = weight.flatten(1)
            with torch.no_grad():
                right = F.normalize(self.left @ matrix, dim=0)
                left = F.normalize(matrix @ right, dim=0)
                if self.training:
                    self.left.copy_(left)
            return weight / (left @ matrix @ right)


def spectral(layer: nn.Conv2d | nn.Linear | nn.Embedding) -> nn.Module:
    """`layer` with an orthogonal start and its weight under `SpectralNorm`."""
    nn.init.xavier_uniform_(layer.weight)
    return parametrize.register_parametrization(layer, "weight", SpectralNorm(len(layer.weight)))


class DownBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them, at half the side if `half`.

    >>> DownBlock(3, 8, half=True)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(self, inputs: int, outputs: int, *, half: bool) -> None:
        super().__init__()
        # A rectifier before the first convolution of all would cut off half of the colours.
        self.first = inputs == 3
        self.pool: nn.Module = nn.AvgPool2d(2) if half else nn.Identity()
        self.conv1 = spectral(nn.Conv2d(inputs, outputs, 3, padding=1))
        self.conv2 = spectral(nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = spectral(nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Features of the next block."""
        hidden: Tensor = self.conv1(x if self.first else torch.relu(x))
        out: Tensor = self.pool(self.conv2(torch.relu(hidden)) + self.shortcut(x))
        return out


class Discriminator(nn.Module):
    """Four residual blocks, the sum over all positions, and a score that the label takes part in.

    A score is a linear layer's plus the inner product with the label's own vector (Miyato and Koyama 2018).

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
        """Scores `[B]` of images `[B, 3, 32, 32]` in 0..1 with labels `[B]`: high for real ones."""
        centred = (2 * images - 1).contiguous(memory_format=torch.channels_last)
        # Scores matter around ±1, where bfloat16 under autocast would be coarse.
        features = torch.relu(self.blocks(centred)).to(images.dtype).sum((2, 3))
        with torch.autocast(images.device.type, enabled=False):
            score: Tensor = self.score(features).squeeze(1) + (self.table(y) * features).sum(1)
        return score
