"""The LeNet of Deep Leakage from Gradients (Zhu et al. 2019), the small model of most attack papers."""

from collections.abc import Sequence

from torch import Tensor, nn

from refiner.models.activations import make_activation
from refiner.models.shape_checks import check_classes, check_images, check_input_shape

CHANNELS = 12
STRIDES = (2, 2, 1)


class LeNet(nn.Module):
    """Three 5×5 convolutions of 12 channels with strides 2, 2, 1, then one linear layer.

    Args:
        classes: The number of classes, ≥ 2.
        input_shape: The shape (channels, height, width) of one image, each side ≥ 8.
        activation: One of sigmoid, tanh, relu, elu, silu, gelu, softplus.

    Raises:
        SettingError: An argument is out of its range.

    >>> model = LeNet()
    >>> sum(p.numel() for p in model.parameters())
    15826
    """

    def __init__(
        self, classes: int = 10, input_shape: Sequence[int] = (3, 32, 32), *, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.classes = check_classes(classes)
        self.input_shape = check_input_shape(input_shape)
        channels, height, width = self.input_shape
        layers: list[nn.Module] = []
        for stride in STRIDES:
            layers.append(nn.Conv2d(channels, CHANNELS, 5, stride=stride, padding=2))
            layers.append(make_activation(activation))
            # Padding 2 keeps a side at stride 1 and halves it, rounded up, at stride 2.
            channels, height, width = CHANNELS, -(-height // stride), -(-width // stride)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels * height * width, self.classes)

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
        features: Tensor = self.body(x)
        logits: Tensor = self.head(features.flatten(1))
        return logits
