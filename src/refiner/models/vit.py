"""A vision transformer (Dosovitskiy et al. 2021) for small images: pre-norm, learned positions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.models.shape_checks import check_classes, check_images, check_input_shape

INIT_STD = 0.02


class Attention(nn.Module):
    """Self-attention with an explicit softmax: the fused kernels have no second derivative.

    >>> Attention(width=8, heads=2)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The attention's output `[B, tokens, width]` for tokens `x` of the same shape."""
        batch, tokens, width = x.shape
        qkv: Tensor = self.qkv(x)
        heads = qkv.reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        scale = (width // self.heads) ** -0.5
        weights = torch.softmax((query * scale) @ key.transpose(-2, -1), dim=-1)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, width))
        return mixed


class Block(nn.Module):
    """One pre-norm transformer layer: attention, then a two-layer perceptron, each with a shortcut.

    >>> Block(width=8, heads=2, mlp_ratio=4)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output `[B, tokens, width]` for tokens `x` of the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """Patches as tokens, `depth` transformer layers, a linear layer on the class token; no dropout.

    Args:
        classes: The number of classes, ≥ 2.
        input_shape: The shape (channels, height, width) of one image, each side ≥ 8.
        patch: The side of a patch, a divisor of height and width.
        width: The length of a token, a multiple of `heads`.
        depth: The number of transformer layers.
        heads: The number of attention heads.
        mlp_ratio: The width of the hidden layer of a block's perceptron, in units of `width`.

    Raises:
        SettingError: An argument is out of its range.

    >>> model = ViT(classes=10, width=16, depth=2, heads=2)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        input_shape: Sequence[int] = (3, 32, 32),
        *,
        patch: int = 4,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        mlp_ratio: int = 4,
    ) -> None:
        super().__init__()
        self.classes = check_classes(classes)
        self.input_shape = check_input_shape(input_shape)
        self.patch = checks.integer("patch", patch, 1)
        checks.integer("width", width, 1)
        checks.integer("depth", depth, 1)
        checks.integer("heads", heads, 1)
        checks.integer("mlp_ratio", mlp_ratio, 1)
        channels, height, image_width = self.input_shape
        if height % patch or image_width % patch:
            raise checks.wrong(
                "patch", patch, f"a divisor of the image's height {height} and width {image_width}"
            )
        if width % heads:
            raise checks.wrong("heads", heads, f"a divisor of width = {width}")
        tokens = (height // patch) * (image_width // patch)
        # A linear layer on patches equals the usual strided convolution, and is faster under vmap.
        self.embed = nn.Linear(channels * patch * patch, width)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.classes)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.trunc_normal_(self.token, std=INIT_STD)
        nn.init.trunc_normal_(self.position, std=INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images.

        Args:
            x: Images `[B, *input_shape]`.

        Returns:
            Logits `[B, classes]`.

        Raises:
            DataError: `x` has another shape.
        """
        check_images(x, self.input_shape)
        patches: Tensor = self.embed(self._patches(x))
        tokens = torch.cat((self.token.expand(x.shape[0], -1, -1), patches), dim=1) + self.position
        features: Tensor = self.norm(self.blocks(tokens)[:, 0])
        logits: Tensor = self.head(features)
        return logits

    def _patches(self, x: Tensor) -> Tensor:
        """The image's patches as rows `[B, patches, channels · patch²]`."""
        batch, channels, height, width = x.shape
        side = self.patch
        grid = x.reshape(batch, channels, height // side, side, width // side, side)
        return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * side * side)
