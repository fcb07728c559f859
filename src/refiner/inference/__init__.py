"""Inference from uploads: what they reveal of a client's data without a reconstruction."""

from refiner.inference.attribute import AttributeInference, AttributePrediction
from refiner.inference.attribute_scores import (
    Interval,
    area_under_curve,
    auc_interval,
    balanced_accuracy,
    explained_variance,
)
from refiner.inference.public_attributes import PublicAttributes

__all__ = [
    "AttributeInference",
    "AttributePrediction",
    "Interval",
    "PublicAttributes",
    "area_under_curve",
    "auc_interval",
    "balanced_accuracy",
    "explained_variance",
]
