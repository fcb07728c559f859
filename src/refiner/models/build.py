"""The model that a user describes: its name or code, its weights, and the normalisation of its inputs."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from refiner.checks import unknown_name
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.models.model_registry import MODELS, make_model
from refiner.models.model_weights import load_model_weights
from refiner.models.normalized import Normalized
from refiner.models.user_model import is_factory, make_user_model


def build_model(
    model: str,
    classes: int = 10,
    input_shape: Sequence[int] = (3, 32, 32),
    *,
    classes_given: bool = False,
    weights: Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """Build the model that a user describes.

    Args:
        model: One of `MODELS`, with settings if need be, or code: `package.module:factory` or
            `path/to/file.py:factory`. **Code is imported and run**, so it must come from the user; for names
            from elsewhere there is `make_model`.
        classes: Number of classes; a factory gets it if it has a parameter `classes` or `num_classes`.
        input_shape: Shape `(channels, height, width)` of one image, or `(features,)` of a row; see
            `make_user_model`.
        classes_given: Whether the user chose `classes`, see `make_user_model`.
        weights: File with the weights, see `load_model_weights`; None leaves the model as it is.
        mean: Mean of each channel, if the model expects normalised images.
        std: Standard deviation of each channel; given with `mean` or not at all.

    Returns:
        The model for images in 0..1; with `mean` and `std` it is `Normalized`.

    Raises:
        DataError: The name is unknown, the code or the weights can't be used, or one of `mean` and `std` is
            missing.
        SettingError: `mean` or `std` is out of range.

    >>> type(build_model("mlp", mean=[0.5], std=[0.25])).__name__
    'Normalized'
    """
    if (mean is None) != (std is None):
        present, absent = ("mean", "std") if std is None else ("std", "mean")
        value = mean if std is None else std
        raise DataError(field=present, value=value, problem=f"can be given only together with {absent}")
    if is_factory(model):
        network = make_user_model(model, classes, input_shape, classes_given=classes_given)
    elif model.partition(":")[0] in MODELS:
        network = make_model(model, classes=classes, input_shape=input_shape)
    else:
        error = unknown_name(model, MODELS, "model")
        problem = f"{error.problem}; or your own: package.module:factory, path/to/file.py:factory"
        raise DataError(field="model", value=model, problem=problem, expected=error.expected)
    if weights is not None:
        load_model_weights(network, weights)
    if mean is None or std is None:
        return network
    return Normalized(network, mean, std)


def check_model_classes(task: Task, labels: Tensor, classes: int | None = None) -> None:
    """Raise a DataError unless the model has a score for every label, and as many classes as were asked for.

    Args:
        task: The model; its factory may have taken no number of classes.
        labels: All labels.
        classes: The number of classes that the user asked for.

    Raises:
        DataError: The model has too few classes, or not as many as asked for.

    >>> import torch
    >>> task = Task(nn.Linear(2, 3), example=torch.rand(1, 2))
    >>> check_model_classes(task, torch.tensor([0, 4]))
    Traceback (most recent call last):
    refiner.errors.DataError: the model has 3 classes, but the data has the label 4
    """
    if classes is not None and task.classes != classes:
        raise DataError(
            field="classes",
            value=classes,
            problem=f"the model has {task.classes} classes; does its factory have a parameter classes?",
            expected=str(task.classes),
        )
    highest = int(labels.max())
    if highest >= task.classes:
        raise DataError(
            f"the model has {task.classes} classes, but the data has the label {highest}",
            field="model",
            value=task.classes,
            expected=f"at least {highest + 1} classes",
        )
