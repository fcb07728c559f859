"""The LeNet of Deep Leakage from Gradients (Zhu et al. 2019), the small model of most attack papers."""

from collections.abc import Sequence

from torch import Tensor, nn

from refiner.models.settings import activation as make_activation
from refiner.models.settings import check_images, class_count, image_shape

CHANNELS = 12
STRIDES = (2, 2, 1)


class LeNet(nn.Module):
    """Three 5×5 convolutions of 12 channels with strides 2, 2, 1, then one linear layer.

    >>> model = LeNet()
    >>> sum(p.numel() for p in model.parameters())
    15826
    """

    def __init__(
        self, classes: int = 10, input_shape: Sequence[int] = (3, 32, 32), *, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.classes = class_count(classes)
        self.input_shape = image_shape(input_shape)
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
        """Logits `[B, classes]` of images `[B, *input_shape]`."""
        check_images(x, self.input_shape)
        features: Tensor = self.body(x)
        logits: Tensor = self.head(features.flatten(1))
        return logits
