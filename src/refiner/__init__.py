"""refiner keeps a federated-learning client's data out of its gradients, and shows how much still leaks."""

from refiner._version import __version__
from refiner.audit import AuditResult, Tuning, audit
from refiner.backward import backward
from refiner.batch_result import BatchResult
from refiner.core import Task, Update, flatten, gradients
from refiner.data import load_sample
from refiner.defenses import Defense, NoDefense, Refiner
from refiner.errors import DataError, ProtectionError, RefinerError, SettingError, UnsupportedModelError
from refiner.evaluation import EvaluationNetwork
from refiner.models import LeNet, ResNet, ViT, resnet10, resnet18, resnet34
from refiner.noisy_dataset import NoisyDataset
from refiner.protected_training import protect_training

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
    "protect_training",
    "resnet10",
    "resnet18",
    "resnet34",
]
