"""Vision models as plain modules, each differentiable twice and under `torch.func.vmap`."""

import inspect
from collections.abc import Callable, Sequence

from torch import nn

from refiner import checks
from refiner.models.lenet import LeNet
from refiner.models.resnet import ResNet, resnet10, resnet18, resnet34
from refiner.models.statistics import recalibrate
from refiner.models.vit import ViT

__all__ = ["NAMES", "LeNet", "ResNet", "ViT", "build", "recalibrate", "resnet10", "resnet18", "resnet34"]

_MAKERS: dict[str, Callable[..., nn.Module]] = {
    "lenet": LeNet,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "vit": ViT,
}

NAMES: tuple[str, ...] = tuple(_MAKERS)


def build(
    name: str, classes: int = 10, input_shape: Sequence[int] = (3, 32, 32), **settings: object
) -> nn.Module:
    """A new model by its name, one of `NAMES`, with that model's own settings.

    >>> type(build("lenet", classes=100, activation="sigmoid")).__name__
    'LeNet'
    """
    maker = _MAKERS[checks.choice("model", name, NAMES)]
    known = [key for key in inspect.signature(maker).parameters if key not in ("classes", "input_shape")]
    for key in settings:
        checks.choice(f"setting of {name}", key, known)
    return maker(classes=classes, input_shape=input_shape, **settings)
