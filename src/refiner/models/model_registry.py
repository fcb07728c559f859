"""The models by name, third-party ones included."""

import inspect
from collections.abc import Callable, Sequence

from torch import nn

from refiner import checks
from refiner.errors import SettingError
from refiner.models.lenet import LeNet
from refiner.models.mlp import MLP
from refiner.models.resnet import resnet10, resnet18, resnet34
from refiner.models.vit import ViT
from refiner.registry import Registry, parse_settings


def _check_factory(factory: Callable[..., nn.Module]) -> None:
    """A `Registry` check: the factory takes the two arguments that `make_model` passes."""
    missing = {"classes", "input_shape"} - set(inspect.signature(factory).parameters)
    if missing:
        raise TypeError(f"its arguments lack {' and '.join(sorted(missing))}")


MODELS: Registry[nn.Module] = Registry(
    "refiner.models",
    {
        "lenet": LeNet,
        "mlp": MLP,
        "resnet10": resnet10,
        "resnet18": resnet18,
        "resnet34": resnet34,
        "vit": ViT,
    },
    check=_check_factory,
)
"""Every model by name, third-party ones included."""


def make_model(
    name: str, classes: int = 10, input_shape: Sequence[int] = (3, 32, 32), **settings: object
) -> nn.Module:
    """Build a new, untrained model by name.

    Args:
        name: One of `MODELS`, optionally with settings: `resnet18:norm=batch`.
        classes: Number of classes, the width of the output.
        input_shape: Shape `(channels, height, width)` of one image.
        settings: Settings of that model, such as `norm="batch"` of the ResNets; those in `name` take
            precedence.

    Returns:
        The model, with PyTorch's default initialisation drawn from the global random state.

    Raises:
        SettingError: If the name or a setting is unknown, or a plug-in's factory returns no module.
        DataError: If the settings in `name` are malformed.

    >>> type(make_model("lenet", classes=100, activation="sigmoid")).__name__
    'LeNet'
    """
    if isinstance(name, str):  # anything else is refused below
        name, written = parse_settings("model", name)
        settings |= written
    factory = MODELS[checks.choice("model", name, MODELS)]
    known = [key for key in inspect.signature(factory).parameters if key not in ("classes", "input_shape")]
    for key in settings:
        checks.choice(f"setting of {name}", key, known)
    # Declared as an object: a plug-in's factory may return anything.
    model: object = factory(classes=classes, input_shape=input_shape, **settings)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise SettingError(
            field="model",
            value=name,
            problem=f"its factory returned a {kind}, not a module",
            expected="a factory of torch.nn.Module",
        )
    return model
