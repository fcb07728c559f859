"""refiner makes a federated-learning client's images hard to reconstruct, and shows how much leaks."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from refiner._version import __version__

if TYPE_CHECKING:
    from refiner.audit import AuditResult, Tuning, audit
    from refiner.backward import backward
    from refiner.batch_result import BatchResult
    from refiner.core import Task, Update
    from refiner.core.gradients import flatten, gradients
    from refiner.data import load_sample
    from refiner.defenses import Defense, NoDefense, Refiner
    from refiner.errors import DataError, ProtectionError, RefinerError, SettingError, UnsupportedModelError
    from refiner.evaluation import EvaluationNetwork
    from refiner.models import LeNet, ResNet, ViT, resnet10, resnet18, resnet34
    from refiner.noisy_dataset import NoisyDataset
    from refiner.protected_training import protect_training
    from refiner.recommendation import recommend
    from refiner.secret_file import load_secret

__all__ = [
    "AuditResult",
    "BatchResult",
    "DataError",
    "Defense",
    "EvaluationNetwork",
    "LeNet",
    "NoDefense",
    "NoisyDataset",
    "ProtectionError",
    "Refiner",
    "RefinerError",
    "ResNet",
    "SettingError",
    "Task",
    "Tuning",
    "UnsupportedModelError",
    "Update",
    "ViT",
    "__version__",
    "audit",
    "backward",
    "flatten",
    "gradients",
    "load_sample",
    "load_secret",
    "protect_training",
    "recommend",
    "resnet10",
    "resnet18",
    "resnet34",
]

# The imports above, made when a name is first used: PyTorch takes seconds, and `refiner --help` needs none.
_MODULES = {
    "audit": ("AuditResult", "Tuning", "audit"),
    "backward": ("backward",),
    "batch_result": ("BatchResult",),
    "core": ("Task", "Update", "flatten", "gradients"),
    "data": ("load_sample",),
    "defenses": ("Defense", "NoDefense", "Refiner"),
    "errors": ("DataError", "ProtectionError", "RefinerError", "SettingError", "UnsupportedModelError"),
    "evaluation": ("EvaluationNetwork",),
    "models": ("LeNet", "ResNet", "ViT", "resnet10", "resnet18", "resnet34"),
    "noisy_dataset": ("NoisyDataset",),
    "protected_training": ("protect_training",),
    "recommendation": ("recommend",),
    "secret_file": ("load_secret",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name, or a module of the package, when it is first used."""
    full_name = f"{__name__}.{_MODULE_OF.get(name, name)}"
    if not name.startswith("_"):
        try:
            module = import_module(full_name)
        except ModuleNotFoundError as error:
            if error.name != full_name:  # the module exists, but one that it imports does not
                raise
        else:
            value = getattr(module, name) if name in _MODULE_OF else module
            setattr(sys.modules[__name__], name, value)
            return value
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This package: `audit` and `backward` are its functions, whatever is imported from their modules."""

    def __setattr__(self, name: str, value: object) -> None:
        # Python binds every module that it imports to its name in the package.
        if name in _MODULE_OF and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
