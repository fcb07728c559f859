"""A multilayer perceptron: the model whose gradient reveals a single sample exactly."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from refiner import checks
from refiner.models.activations import make_activation
from refiner.models.shape_checks import check_classes, check_images, check_input_shape


class MLP(nn.Module):
    """Hidden layers on the flattened image, or on a row of features.

    The first layer sees the image itself: of a batch of one sample its gradient is that image times a number
    for every row (see the attack `analytic`).

    Args:
        classes: The number of classes, ≥ 2.
        input_shape: The shape (channels, height, width) of one image, each side ≥ 8, or (features,) for rows.
        hidden: The width of a hidden layer.
        layers: The number of hidden layers.
        activation: One of sigmoid, tanh, relu, elu, silu, gelu, softplus.

    Raises:
        SettingError: An argument is out of its range.

    >>> model = MLP(hidden=64)
    >>> sum(p.numel() for p in model.parameters())
    197322
    """

    def __init__(
        self,
        classes: int = 10,
        input_shape: Sequence[int] = (3, 32, 32),
        *,
        hidden: int = 256,
        layers: int = 1,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        self.classes = check_classes(classes)
        self.input_shape = _check_shape(input_shape)
        checks.integer("hidden", hidden, 1)
        checks.integer("layers", layers, 1)
        self.body = nn.Linear(math.prod(self.input_shape), hidden)
        self.activation = make_activation(activation)
        self.hidden = nn.Sequential(
            *(
                part
                for _ in range(layers - 1)
                for part in (nn.Linear(hidden, hidden), make_activation(activation))
            )
        )
        self.head = nn.Linear(hidden, self.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch.

        Args:
            x: Images or rows `[B, *input_shape]`.

        Returns:
            Logits `[B, classes]`.

        Raises:
            DataError: `x` has another shape.
        """
        check_images(x, self.input_shape)
        logits: Tensor = self.head(self.hidden(self.activation(self.body(x.flatten(1)))))
        return logits


def _check_shape(value: Sequence[int]) -> tuple[int, ...]:
    """`value` as the shape of an image or, with one number, of a row."""
    if isinstance(value, Sequence) and len(value) == 1:
        return (checks.integer("input_shape", value[0], 1),)
    return check_input_shape(value)
