"""ResNets for small images (He et al. 2016): 3×3 stem of stride 1, no max pool, basic blocks."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from refiner import checks
from refiner.models.activations import make_activation
from refiner.models.shape_checks import check_classes, check_images, check_input_shape

WIDTHS = (64, 128, 256, 512)
NORMS = ("group", "batch")

_NormFactory = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them.

    >>> import torch
    >>> BasicBlock(64, 128, 2, nn.BatchNorm2d, "relu")(torch.zeros(2, 64, 8, 8)).shape
    torch.Size([2, 128, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: _NormFactory, activation: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.act1 = make_activation(activation)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(outputs))
        self.act2 = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """The features `[B, outputs, H / stride, W / stride]` of `x [B, inputs, H, W]`."""
        out = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        out = self.act2(out + self.shortcut(x))
        return out  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Four stages of `blocks` basic blocks of 64, 128, 256, 512 channels, average pool, linear layer.

    Group norm is the default: it normalises each sample by itself, so that gradients depend on no statistics
    of the batch.

    Args:
        blocks: How many blocks each of the four stages has.
        classes: The number of classes, ≥ 2.
        input_shape: The shape (channels, height, width) of one image, each side ≥ 8.
        norm: The normalisation, "group" or "batch".
        activation: One of sigmoid, tanh, relu, elu, silu, gelu, softplus.
        groups: The number of groups of group norm, a divisor of 64.

    Raises:
        SettingError: An argument is out of its range.

    >>> import torch
    >>> model = ResNet((1, 1, 1, 1), classes=10, input_shape=(1, 28, 28))
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        blocks: Sequence[int],
        classes: int = 10,
        input_shape: Sequence[int] = (3, 32, 32),
        *,
        norm: str = "group",
        activation: str = "relu",
        groups: int = 32,
    ) -> None:
        super().__init__()
        depths = _check_blocks(blocks)
        self.classes = check_classes(classes)
        self.input_shape = check_input_shape(input_shape)
        make_norm = _norm_factory(norm, groups)
        channels = WIDTHS[0]
        self.stem = nn.Sequential(
            nn.Conv2d(self.input_shape[0], channels, 3, padding=1, bias=False),
            make_norm(channels),
            make_activation(activation),
        )
        stages: list[nn.Module] = []
        for width, depth, first_stride in zip(WIDTHS, depths, (1, 2, 2, 2), strict=True):
            stage: list[nn.Module] = []
            for index in range(depth):
                stage.append(BasicBlock(channels, width, 1 if index else first_stride, make_norm, activation))
                channels = width
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, self.classes)

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
        features: Tensor = self.stages(self.stem(x))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


resnet10 = partial(ResNet, (1, 1, 1, 1))
"""A `ResNet` of 10 weighted layers; takes its arguments but `blocks`."""
resnet18 = partial(ResNet, (2, 2, 2, 2))
"""A `ResNet` of 18 weighted layers; takes its arguments but `blocks`."""
resnet34 = partial(ResNet, (3, 4, 6, 3))
"""A `ResNet` of 34 weighted layers; takes its arguments but `blocks`."""


def _check_blocks(blocks: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(blocks, Sequence) or len(blocks) != len(WIDTHS):
        raise checks.wrong("blocks", blocks, "four integers ≥ 1")
    return tuple(checks.integer("blocks", depth, 1) for depth in blocks)


def _norm_factory(name: str, groups: int) -> _NormFactory:
    checks.choice("norm", name, NORMS)
    checks.integer("groups", groups, 1)
    if WIDTHS[0] % groups:
        raise checks.wrong("groups", groups, f"a divisor of {WIDTHS[0]}")
    if name == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(groups, channels)
