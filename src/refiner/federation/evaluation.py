"""Test accuracy and test loss of a federated training; batch norm gets running statistics first."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from refiner.core.task import Task
from refiner.data.image_dataset import ImageDataset
from refiner.models import recalibrate

# Images that running statistics are computed from, and how many in one batch.
_CALIBRATION_IMAGES, _CALIBRATION_BATCH = 2048, 256


class ModelScores(NamedTuple):
    """How well a model does on test data.

    Args:
        accuracy: The share of samples classified correctly, in [0, 1].
        loss: The loss of all samples, by default their mean cross-entropy; None if it is not finite.
    """

    accuracy: float
    loss: float | None


@torch.no_grad()
def evaluate(
    task: Task, test: ImageDataset, chunk: int = 2000, calibration: Tensor | None = None
) -> ModelScores:
    """Accuracy and loss of the model of `task` on test data, from the same forward passes.

    Args:
        task: The model and its loss.
        test: The test data.
        chunk: Samples in one forward pass.
        calibration: As in `accuracy`.

    Returns:
        The scores.

    >>> from refiner.data import load_data
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> _ = torch.nn.init.zeros_(model[1].weight), torch.nn.init.zeros_(model[1].bias)
    >>> scores = evaluate(Task(model, example=torch.rand(1, 3, 32, 32)), load_data("sample"))
    >>> scores.accuracy, abs(scores.loss - math.log(10)) < 1e-6
    (0.1, True)
    """
    outputs, labels = _outputs_and_labels(task, test, chunk, calibration)
    loss = float(task.loss_of_scores(outputs, labels))
    return ModelScores(_share_correct(outputs, labels), loss if math.isfinite(loss) else None)


@torch.no_grad()
def accuracy(task: Task, test: ImageDataset, chunk: int = 2000, calibration: Tensor | None = None) -> float:
    """The share of test samples that the model of `task` classifies correctly.

    Args:
        task: The model.
        test: The test data.
        chunk: Samples in one forward pass.
        calibration: Images, uint8 `[S, 3, H, W]`, that the running statistics of batch norm are computed from
            before the evaluation, see `update_running_statistics`. Without them batch norm uses the
            statistics of each chunk of test samples.

    Returns:
        The accuracy in [0, 1].

    >>> from refiner.data import load_data
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> _ = torch.nn.init.zeros_(model[1].weight)  # so that it predicts the same class for every image
    >>> accuracy(Task(model, example=torch.rand(1, 3, 32, 32)), load_data("sample"))
    0.1
    """
    return _share_correct(*_outputs_and_labels(task, test, chunk, calibration))


def _share_correct(outputs: Tensor, labels: Tensor) -> float:
    return int((outputs.argmax(1) == labels).sum()) / len(labels)


def _outputs_and_labels(
    task: Task, test: ImageDataset, chunk: int, calibration: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the class scores and the labels of all test samples, on the model's device."""
    use_statistics = update_running_statistics(task, calibration)
    parameters = task.parameters()
    like = next(iter(parameters.values()))
    modes = [(module, module.training) for module in task.model.modules()]
    outputs = []
    try:
        task.model.eval()
        for images in torch.split(test.images, chunk):
            x = _to_inputs(images, like)
            outputs.append(task.model(x) if use_statistics else task.scores(parameters, x))
    finally:
        for module, training in modes:
            module.training = training
    return torch.cat(outputs), test.labels.to(like.device)


def update_running_statistics(task: Task, images: Tensor | None) -> bool:
    """Recompute the running statistics of batch norm from up to 2,048 images, drawn with a fixed seed.

    Args:
        task: The model; its buffers are changed, nothing else.
        images: Images uint8 `[S, 3, H, W]`, of a party that may know them; None changes nothing.

    Returns:
        Whether there are images, and the model has running statistics.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(1, 3, 32, 32))
    >>> update_running_statistics(task, torch.zeros(4, 3, 32, 32, dtype=torch.uint8))
    False
    """
    modules = task.model.modules()
    if images is None or not any(isinstance(m, _BatchNorm) and m.running_mean is not None for m in modules):
        return False
    like = next(iter(task.parameters().values()))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:_CALIBRATION_IMAGES]
    # Of almost equal size: batch norm can't normalise a last batch of one sample.
    batches = order.tensor_split(-(-len(order) // _CALIBRATION_BATCH))
    recalibrate(task.model, (_to_inputs(images[batch.to(images.device)], like) for batch in batches))
    return True


def _to_inputs(images: Tensor, like: Tensor) -> Tensor:
    """Images of bytes as inputs in 0..1 on the model's device."""
    return images.to(like.device).to(like.dtype) / 255
