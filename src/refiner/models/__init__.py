"""Vision models as plain modules, each differentiable twice and under `torch.func.vmap`."""

from refiner.models.build import build_model
from refiner.models.lenet import LeNet
from refiner.models.mlp import MLP
from refiner.models.model_registry import MODELS, make_model
from refiner.models.model_weights import load_model_weights
from refiner.models.normalized import Normalized, normalized_range
from refiner.models.recalibration import recalibrate
from refiner.models.resnet import ResNet, resnet10, resnet18, resnet34
from refiner.models.vit import ViT

__all__ = [
    "MLP",
    "MODELS",
    "LeNet",
    "Normalized",
    "ResNet",
    "ViT",
    "build_model",
    "load_model_weights",
    "make_model",
    "normalized_range",
    "recalibrate",
    "resnet10",
    "resnet18",
    "resnet34",
]
