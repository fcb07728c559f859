"""A U-Net for small images, which attackers train to turn a poor image into a better one."""

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)

# The coarsest level has at least this many pixels per side, and there are at most so many levels below.
_COARSEST, _MAX_HALVINGS = 4, 3
_GROUPS = 8


def seeded_network(make: Callable[[], Network], seed: int) -> Network:
    """Return a new network whose initial weights depend on the seed alone, on the CPU.

    PyTorch initialises from its global generator, whose state is the same afterwards as before.

    Args:
        make: Builds the network.
        seed: Seed of its weights.

    Returns:
        The network.

    >>> before = torch.get_rng_state()
    >>> a, b = (seeded_network(lambda: nn.Linear(2, 1), 5).weight for _ in range(2))
    >>> torch.equal(a, b), torch.equal(before, torch.get_rng_state())
    (True, True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


class UNet(nn.Module):
    """Maps images to images of the same size, optionally given their class.

    Residual blocks with group norm; each level has half the side of the one above and twice its channels, up
    to four times the width. The output is zero before the training.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        width: Channels of the finest level, a multiple of 8.
        side: The shorter side of the images in pixels: it decides how many levels there are.
        classes: Number of classes that the output may depend on; 0 for none.

    >>> network = UNet(3, 3, width=8, side=32, classes=10)
    >>> network(torch.rand(2, 3, 32, 28), torch.tensor([3, 5])).shape
    torch.Size([2, 3, 32, 28])
    """

    def __init__(self, inputs: int, outputs: int, width: int, side: int, classes: int = 0) -> None:
        super().__init__()
        halvings = 0
        while halvings < _MAX_HALVINGS and side // 2 ** (halvings + 1) >= _COARSEST:
            halvings += 1
        channels = [width * min(2**level, 4) for level in range(halvings + 1)]
        self.classes = classes
        self.multiple = 2**halvings
        """Sides are padded to a multiple of this."""
        self.start = nn.Conv2d(inputs, width, 3, padding=1)
        self.down = nn.ModuleList(_Block(c, c, classes) for c in channels[:-1])
        self.coarser = nn.ModuleList(
            nn.Conv2d(fine, coarse, 2, stride=2) for fine, coarse in pairwise(channels)
        )
        self.bottom = _Block(channels[-1], channels[-1], classes)
        # A convolution whose channels become pixels: deterministic on a GPU, unlike most resizing.
        self.finer = nn.ModuleList(nn.Conv2d(coarse, 4 * fine, 1) for fine, coarse in pairwise(channels))
        self.up = nn.ModuleList(_Block(2 * c, c, classes) for c in channels[:-1])
        self.end = nn.Conv2d(width, outputs, 3, padding=1)
        nn.init.zeros_(self.end.weight)
        nn.init.zeros_(self.end.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the output for each image.

        Args:
            images: `[N, inputs, H, W]`.
            labels: Classes `[N]`, for a network with classes.

        Returns:
            `[N, outputs, H, W]`.
        """
        height, width = images.shape[-2:]
        classes = None
        if self.classes and labels is not None:
            classes = F.one_hot(labels, self.classes).to(images.dtype)
        padding = (0, -width % self.multiple, 0, -height % self.multiple)
        hidden = F.pad(images, padding) if any(padding) else images
        hidden = self.start(hidden)
        skipped = []
        for block, coarser in zip(self.down, self.coarser, strict=True):
            hidden = block(hidden, classes)
            skipped.append(hidden)
            hidden = coarser(hidden)
        hidden = self.bottom(hidden, classes)
        for block, finer, fine in zip(
            reversed(self.up), reversed(self.finer), reversed(skipped), strict=True
        ):
            hidden = F.pixel_shuffle(finer(hidden), 2)
            hidden = block(torch.cat([hidden, fine], dim=1), classes)
        out: Tensor = self.end(hidden)
        return out[..., :height, :width]


class _Block(nn.Module):
    """Two convolutions beside a shortcut; the class shifts the channels between them."""

    def __init__(self, inputs: int, outputs: int, classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(_GROUPS, inputs), nn.GroupNorm(_GROUPS, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.shift = nn.Linear(classes, outputs, bias=False) if classes else None

    def forward(self, x: Tensor, classes: Tensor | None) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        if self.shift is not None and classes is not None:
            hidden = hidden + self.shift(classes)[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        out: Tensor = hidden + self.shortcut(x)
        return out
