"""The way into an existing training loop: `backward` stands where `loss.backward()` stood."""

from collections import OrderedDict

from torch import Tensor, nn

from refiner.core.input_checks import check_devices, check_types
from refiner.core.task import Loss, Task
from refiner.core.update import Update
from refiner.defenses.base import Defense
from refiner.errors import DataError, SettingError

_Key = tuple[object, ...]
# The few models of a process; the oldest is let go, so that a loop over models does not keep them all.
_TASKS: OrderedDict[_Key, Task] = OrderedDict()
_KEPT = 4


def backward(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, defense: Defense, *, ids: Tensor | None = None
) -> Update:
    """Add the protected gradient of `loss(model(x), y)` to each `.grad`, as `loss.backward()` adds it raw.

    If the defence fails it raises, and no `.grad` is touched. Dropout is off, and batch norm uses the batch
    and updates no running statistics: call `refiner.models.recalibrate` before you evaluate such a model.
    Give the same `loss` object at every step: for another one the model is examined anew, which takes longer
    than a step.

    >>> import torch
    >>> from refiner import LeNet, Refiner
    >>> model, x, y = LeNet(), torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> update = backward(model, nn.functional.cross_entropy, x, y, Refiner(iterations=1))
    >>> model.head.bias.grad.shape
    torch.Size([10])
    """
    if not isinstance(defense, Defense):
        raise SettingError(f"defense = {type(defense).__name__}: expected a Defense such as Refiner()")
    if not callable(loss):
        raise DataError(f"loss = {type(loss).__name__}: expected a function loss(scores, labels)")
    check_types(model, "x", x)
    update = defense.protect(_task(model, loss, x), x, y, ids=ids)
    found: list[tuple[nn.Parameter, Tensor]] = []
    for name, gradient in update.tensors.items():
        parameter, own = model.get_parameter(name), gradient[0]
        # In memory of its own: what is done to it in place, as clipping is, must not change the update.
        found.append((parameter, own.clone() if parameter.grad is None else parameter.grad + own))
    for parameter, total in found:
        parameter.grad = total
    return update


def _task(model: nn.Module, loss: Loss, x: Tensor) -> Task:
    # A model that was rebuilt, frozen, moved or set otherwise in the meantime must be examined again.
    modules = tuple((name, id(module), _attributes(module)) for name, module in model.named_modules())
    parameters = tuple((name, p.shape, p.requires_grad) for name, p in model.named_parameters())
    key = (modules, parameters, loss, x.shape[1:], x.device, x.dtype)
    if key not in _TASKS:
        check_devices(model, "x", x)
        _TASKS[key] = Task(model, example=x[:2], loss=loss)
        if len(_TASKS) > _KEPT:
            _TASKS.popitem(last=False)
    _TASKS.move_to_end(key)
    return _TASKS[key]


def _attributes(module: nn.Module) -> tuple[object, ...]:
    """What a module is set by beside parameters and buffers: plain values, tensors with their versions."""
    held: list[tuple[object, ...]] = []
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            held.append((name, id(value), value._version))
        elif isinstance(value, int | float | str) and name != "training":
            held.append((name, value))
    return tuple(held)
