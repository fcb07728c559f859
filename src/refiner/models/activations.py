"""The activations that the models offer by name."""

from collections.abc import Callable

from torch import nn

from refiner import checks

# All are smooth or piecewise smooth, and none works in place: gradients are differentiated again.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
}


def make_activation(name: str) -> nn.Module:
    """A new activation module.

    Args:
        name: One of `ACTIVATIONS`.

    Returns:
        The module.

    Raises:
        SettingError: The name is unknown.

    >>> make_activation("tanh")
    Tanh()
    """
    return ACTIVATIONS[checks.choice("activation", name, ACTIVATIONS)]()
