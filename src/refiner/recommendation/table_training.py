"""A short training of a copy of a model of rows: what accuracy a defence keeps."""

import copy

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from refiner.core.task import Task
from refiner.defenses import Defense
from refiner.errors import ProtectionError
from refiner.models import recalibrate


def train_on_rows(
    task: Task,
    rows: tuple[Tensor, Tensor],
    test_rows: tuple[Tensor, Tensor],
    defense: Defense,
    *,
    rounds: int,
    batch: int,
    lr: float,
    seed: int,
) -> tuple[float, Task]:
    """Train a copy of the model with plain SGD on the uploads of one client, and test it.

    Args:
        task: The model and its loss; the model itself is not changed.
        rows: Rows in 0..1 `[N, features]` and their labels `[N]`.
        test_rows: Other rows and their labels.
        defense: The client's defence.
        rounds: The number of steps.
        batch: Rows in each.
        lr: The learning rate.
        seed: The seed of the batches and of the defence's noise.

    Returns:
        The accuracy on the test rows in [0, 1], and the task of the trained copy.

    Raises:
        ProtectionError: The model is no longer finite.
    """
    x, y = rows
    trained = Task(copy.deepcopy(task.model), example=x[:2], loss=task.loss_function)
    state = defense.init_state()
    generator = torch.Generator().manual_seed(seed)
    parameters = trained.parameters()
    for step in range(rounds):
        chosen = torch.randint(len(y), (batch,), generator=generator).to(y.device)
        update = defense.protect(trained, x[chosen], y[chosen], seed=seed + step, state=state, training=True)
        with torch.no_grad():
            for name, gradient in update.tensors.items():
                parameters[name] -= lr * gradient[0]
    if not all(bool(parameter.isfinite().all()) for parameter in parameters.values()):
        raise ProtectionError(f"the model is not finite after {rounds} rounds")
    return _accuracy(trained, x, test_rows), trained


def _accuracy(task: Task, x: Tensor, test_rows: tuple[Tensor, Tensor]) -> float:
    model = task.model
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if any(layer.running_mean is not None for layer in layers):
        recalibrate(model, [x])
    was_training = model.training
    model.eval()
    with torch.no_grad():
        scores = model(test_rows[0])
    model.train(was_training)
    return float((scores.argmax(1) == test_rows[1]).float().mean())
