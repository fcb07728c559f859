"""`backward`: a drop-in replacement for `loss.backward()` in an existing training loop."""

import math
import weakref
from collections import OrderedDict
from typing import cast, overload

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from refiner.batch_result import BatchResult
from refiner.core.input_checks import check_devices, check_types
from refiner.core.task import Loss, Task
from refiner.core.update import Update
from refiner.core.wrappers import unwrap_model
from refiner.defenses.base import Defense
from refiner.defenses.state import DefenseState
from refiner.errors import DataError, ProtectionError, SettingError

_Key = tuple[object, ...]
# The tasks of each model; they disappear with the model, since they refer to it weakly.
_TASKS: weakref.WeakKeyDictionary[nn.Module, OrderedDict[_Key, Task]] = weakref.WeakKeyDictionary()
_TASKS_PER_MODEL = 4


@overload
def backward(
    model: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    defense: Defense,
    *,
    ids: Tensor | None = None,
    state: DefenseState | None = None,
    noisy: Tensor | None = None,
) -> BatchResult: ...
@overload
def backward(
    model: Task,
    loss: None,
    x: Tensor,
    y: Tensor,
    defense: Defense,
    *,
    ids: Tensor | None = None,
    state: DefenseState | None = None,
    noisy: Tensor | None = None,
) -> BatchResult: ...
def backward(
    model: nn.Module | Task,
    loss: Loss | None,
    x: Tensor,
    y: Tensor,
    defense: Defense,
    *,
    ids: Tensor | None = None,
    state: DefenseState | None = None,
    noisy: Tensor | None = None,
) -> BatchResult:
    """Add the protected gradient of `loss(model(x), y)` to each `.grad`, in place of the raw gradient.

    Dropout is off, and batch norm uses the batch's statistics and updates no running statistics: call
    `refiner.models.recalibrate` before evaluating such a model.

    Args:
        model: The model, or a `Task`, which is not validated again.
        loss: A function of scores `[B, outputs]` and targets; None with a `Task`. Pass the same object
            in every step: for another one the model is validated again, which takes longer than a step.
        x: Inputs `[B, *input]`.
        y: Class labels `[B]`, or values `[B, outputs]` or `[B]`: soft labels, BCE, regression.
        defense: The defence; keep one object for the whole training.
        ids: One integer ≥ 0 per sample, for a defence with a state.
        state: What the defence remembers between steps, from `defense.init_state()`; only some need one.
        noisy: For augmented images and `Refiner`: the same images with the noise of their originals, from
            `refiner.NoisyDataset`. Without it an augmented copy gets noise of its own.

    Returns:
        The update whose tensors were added, and the loss and scores of the real data for the client's own
        log; only the update may leave the client.

    Raises:
        RefinerError: If an argument is wrong, the model is not finite, or the defence fails. No `.grad` is
            changed then. It depends on the data only if they are not finite or out of range.

    >>> import torch
    >>> from refiner import LeNet, Refiner
    >>> model, x, y = LeNet(), torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> result = backward(model, nn.functional.cross_entropy, x, y, Refiner(iterations=1))
    >>> result.update
    Update(refiner, victims=1, samples=2, parameters=8)
    >>> result.loss.shape, result.scores.shape
    (torch.Size([]), torch.Size([2, 10]))
    >>> model.head.bias.grad.shape
    torch.Size([10])
    """
    check_defense(defense)
    if isinstance(model, Task):
        if loss is not None:
            raise DataError(
                "loss with a Task: expected None, a Task has its own loss", field="loss", expected="None"
            )
        task, model = model, model.model
    else:
        if not callable(loss):
            raise DataError(
                f"loss = {type(loss).__name__}: expected a function loss(scores, labels)",
                field="loss",
                expected="a function loss(scores, labels)",
            )
        check_types(model, "x", x)
        model = unwrap_model(model)
        task = cached_task(model, loss, x)
    result = protected_batch(task, x, y, defense, ids=ids, state=state, noisy=noisy)
    add_to_grads(model, result.update)
    return result


def check_defense(defense: Defense) -> None:
    """Raise a `SettingError` unless `defense` is one."""
    if not isinstance(defense, Defense):
        raise SettingError(
            f"defense = {type(defense).__name__}: expected a Defense such as Refiner()",
            field="defense",
            expected="a Defense",
        )


def protected_batch(
    task: Task,
    x: Tensor,
    y: Tensor,
    defense: Defense,
    *,
    ids: Tensor | None = None,
    state: DefenseState | None = None,
    noisy: Tensor | None = None,
) -> BatchResult:
    """What `backward` returns; no `.grad` is changed."""
    if not bool(get_total_norm(task.model.parameters(), math.inf).isfinite()):
        raise ProtectionError("model: holds values that are not finite; has the training diverged?")
    protection = defense.protection(task, x, y, ids=ids, state=state, training=True, noisy=noisy)
    scores = None if protection.scores is None else protection.scores[0]
    return BatchResult(protection.update, task, x, y, scores)


def add_to_grads(model: nn.Module, update: Update, scale: float = 1.0) -> None:
    """Add one client's update, times `scale`, to each `.grad` of its model."""
    totals: list[tuple[nn.Parameter, Tensor]] = []
    for name, gradient in update.tensors.items():
        # A copy: in-place changes of `.grad`, such as clipping, must not change the update.
        parameter, added = model.get_parameter(name), gradient[0] * scale
        totals.append((parameter, added if parameter.grad is None else parameter.grad + added))
    for parameter, total in totals:
        parameter.grad = total


def cached_task(model: nn.Module, loss: Loss, x: Tensor) -> Task:
    """The task of the model as it is; a model whose structure or attributes changed is validated again."""
    check_types(model, "x", x)
    modules = tuple(
        (name, type(module), id(module), _plain_attributes(module)) for name, module in model.named_modules()
    )
    parameters = tuple((name, p.shape, p.requires_grad) for name, p in model.named_parameters())
    key = (modules, parameters, loss, x.shape[1:], x.device, x.dtype)
    tasks = _TASKS.setdefault(model, OrderedDict())
    if key not in tasks:
        check_devices(model, "x", x)
        # Random values, not the client's: whether a model is accepted must not depend on the data.
        example = torch.rand(x[:2].shape, generator=torch.Generator().manual_seed(0)).to(x)
        task = Task(model, example=example, loss=loss)
        # The caller holds the model. A strong reference here would keep it alive for ever.
        task.model = cast(nn.Module, weakref.proxy(model))
        tasks[key] = task
        if len(tasks) > _TASKS_PER_MODEL:
            tasks.popitem(last=False)
    tasks.move_to_end(key)
    return tasks[key]


def _plain_attributes(module: nn.Module) -> tuple[object, ...]:
    """A module's numbers, strings and tensors beside parameters and buffers; tensors with their version."""
    attributes: list[tuple[object, ...]] = []
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            attributes.append((name, id(value), value._version))
        elif isinstance(value, int | float | str) and name != "training":
            attributes.append((name, value))
    return tuple(attributes)
