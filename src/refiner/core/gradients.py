"""Victim-batched gradients: inputs `[V, B, ...]` in, one gradient a victim out, differentiable in x."""

from collections.abc import Mapping

import torch
from torch import Tensor

from refiner import checks
from refiner.core.input_checks import check_recording, dense, kind
from refiner.core.task import Parameters, Task
from refiner.errors import DataError

Gradients = dict[str, Tensor]


def gradients(
    task: Task, x: Tensor, y: Tensor, *, parameters: Parameters | None = None, chunk: int | None = None
) -> Gradients:
    """The gradient of every victim's own loss: `[V, B, *input]` and `[V, B]` give name → `[V, *shape]`.

    `parameters`, if not the model's, are shared, name → `shape`, or every victim's own, name → `[V, *shape]`.
    If `x` requires a gradient the result can be differentiated with respect to it. `chunk` victims are
    computed at a time; that bounds memory and changes results by rounding only. Labels may be probabilities
    `[V, B, classes]`; that they are in range is not checked: a look at values would wait for a GPU.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 2, 3, 32, 32), torch.zeros(3, 2, dtype=torch.long)
    >>> g = gradients(Task(LeNet(), example=x[0]), x, y)
    >>> g["head.bias"].shape
    torch.Size([3, 10])
    """
    values = _checked(task, x, y, parameters)
    if chunk is not None:
        checks.integer("chunk", chunk, 1)
    size, own, parts = chunk or len(x), _own(task, values), []
    for first in range(0, len(x), size):
        part = slice(first, first + size)
        theirs = {name: value[part] for name, value in values.items()} if own else values
        parts.append(_chunk(task, theirs, x[part], y[part]))
    return parts[0] if len(parts) == 1 else {name: torch.cat([p[name] for p in parts]) for name in task.names}


def replayed(task: Task, x: Tensor, y: Tensor) -> Gradients:
    """The same for the model as it is; on a GPU a call whose shapes come back is replayed without Python.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 2, 3, 32, 32), torch.zeros(3, 2, dtype=torch.long)
    >>> task = Task(LeNet(), example=x[0])
    >>> torch.equal(replayed(task, x, y)["head.bias"], gradients(task, x, y)["head.bias"])
    True
    """

    def flat(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return flatten(gradients(task, x, y, parameters=parameters))

    return unflatten(task, task.replay("gradients", flat, x, y))


def directional(
    task: Task, x: Tensor, y: Tensor, tangent: Tensor, *, parameters: Parameters | None = None
) -> Gradients:
    """The derivative of the gradient along `tangent [V, B, *input]` in x, exactly: name → `[V, *shape]`.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(1, 2, 3, 32, 32), torch.zeros(1, 2, dtype=torch.long)
    >>> along = directional(Task(LeNet(), example=x[0]), x, y, torch.zeros_like(x))
    >>> float(along["head.bias"].abs().max())
    0.0
    """
    values = _checked(task, x, y, parameters)
    if not dense(tangent) or tangent.shape != x.shape or tangent.dtype != x.dtype:
        raise DataError(f"tangent = {kind(tangent)}: expected dense {kind(x)}, as x")
    with torch.no_grad():
        pair = torch.func.jvp(lambda data: _batched(task, values, data, y), (x,), (tangent,))
    along: Gradients = pair[1]
    return along


def _checked(task: Task, x: Tensor, y: Tensor, parameters: Parameters | None) -> Parameters:
    """The parameters to use; refuses what can be seen without a look at values, which a recording forbids."""
    if not isinstance(task, Task):
        raise DataError(
            f"task = {type(task).__name__}: expected a Task; make one with Task(model, example=x)"
        )
    shape = task.input_shape
    if not dense(x) or not x.is_floating_point() or x.shape[2:] != shape or 0 in x.shape[:2]:
        wanted = f"dense floating-point inputs [V, B, {', '.join(map(str, shape))}], V and B ≥ 1"
        raise DataError(f"x = {kind(x)}: expected {wanted}")
    labels, shares = x.shape[:2], (*x.shape[:2], task.classes)
    if not dense(y) or y.shape != (labels if y.dtype == torch.long else shares):
        wanted = f"dense torch.int64 labels {list(labels)} or probabilities {list(shares)}"
        raise DataError(f"y = {kind(y)}: expected {wanted}")
    check_recording(x)
    values = task.parameters() if parameters is None else _complete(task, parameters)
    first = values[task.names[0]]
    if _own(task, values) and len(first) != len(x):
        raise DataError(f"parameters of {len(first)} models: expected one for each of {len(x)} victims")
    if x.device != first.device or y.device != first.device:
        raise DataError(
            f"x on {x.device}, y on {y.device}: expected both on the parameters' device, {first.device}"
        )
    if x.dtype != first.dtype:
        raise DataError(f"x of {x.dtype}: expected the parameters' dtype, {first.dtype}")
    return values


def _complete(task: Task, parameters: Parameters) -> Parameters:
    if not isinstance(parameters, Mapping):
        raise DataError(f"parameters = {type(parameters).__name__}: expected tensors by name")
    missing = [name for name in task.names if name not in parameters]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(f"parameters: without {missing[0]}{more}, expected all {len(task.names)} of the task")
    lead = task.names[0]
    first = parameters[lead]
    # All have an axis of victims if the first has.
    own = dense(first) and first.ndim == len(task.shapes[lead]) + 1
    axis = first.shape[:1] if own else None
    for name, shape in task.shapes.items():
        value = parameters[name]
        wanted = shape if axis is None else axis + shape
        if not dense(value) or value.shape != wanted:
            either = f" or [V, *{list(shape)}]" if name == lead else ""
            raise DataError(f"parameters: {name} = {kind(value)}: expected dense {list(wanted)}{either}")
        if name == lead:
            dtype, device, real = value.dtype, value.device, value.is_floating_point()
        if value.dtype != dtype or value.device != device or not real:
            _check_alike(task, name, value, first)
    return parameters


def _check_alike(task: Task, name: str, value: Tensor, first: Tensor) -> None:
    """Refuse a parameter whose dtype or device differs from the first one's, if not as in the model."""
    model, begin = task.model.get_parameter(name), task.model.get_parameter(task.names[0])
    dtype = first.dtype if model.dtype == begin.dtype and first.is_floating_point() else model.dtype
    if value.dtype != dtype:
        raise DataError(f"parameters: {name} of {value.dtype}: expected {dtype}")
    device = first.device if model.device == begin.device else model.device
    if value.device != device:
        raise DataError(f"parameters: {name} on {value.device}: expected {device}")


def _batched(task: Task, parameters: Parameters, x: Tensor, y: Tensor) -> Gradients:
    one = torch.func.grad(task.loss)
    if _own(task, parameters):
        each: Gradients = torch.func.vmap(one)(dict(parameters), x, y)
        return each
    if len(x) > 1:
        many: Gradients = torch.func.vmap(one, in_dims=(None, 0, 0))(dict(parameters), x, y)
        return many
    return {name: g[None] for name, g in one(dict(parameters), x[0], y[0]).items()}


def _chunk(task: Task, parameters: Parameters, x: Tensor, y: Tensor) -> Gradients:
    if len(x) > 1 or _own(task, parameters) or (x.requires_grad and torch.is_grad_enabled()):
        # Here the recorded graph leads to x alone: a walk back spends nothing on second derivatives in θ.
        return _batched(task, parameters, x, y)
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        found = torch.autograd.grad(
            task.loss(leaves, x[0], y[0]), list(leaves.values()), materialize_grads=True
        )
    return {name: g[None] for name, g in zip(leaves, found, strict=True)}


def _own(task: Task, parameters: Parameters) -> bool:
    """Whether every victim has parameters of its own."""
    first = task.names[0]
    return parameters[first].ndim > len(task.shapes[first])


def flatten(gradient: Mapping[str, Tensor]) -> Tensor:
    """All of a gradient as one matrix `[V, N]`, in the mapping's order.

    >>> flatten({"a": torch.zeros(2, 3), "b": torch.ones(2, 1, 1)}).shape
    torch.Size([2, 4])
    """
    return torch.cat([value[:, None].flatten(1) for value in gradient.values()], dim=1)


def flatten_parameters(task: Task, parameters: Parameters) -> Tensor:
    """Parameters as one matrix: `[1, N]` if victims share them, `[V, N]` if each has its own.

    >>> task = Task(torch.nn.Linear(2, 1, bias=False), example=torch.rand(3, 2))
    >>> flatten_parameters(task, task.parameters()).shape
    torch.Size([1, 2])
    """
    own = _own(task, parameters)
    return flatten({name: parameters[name] if own else parameters[name][None] for name in task.names})


def unflatten(task: Task, flat: Tensor) -> Gradients:
    """The inverse of `flatten` for a task's parameters.

    >>> task = Task(torch.nn.Linear(2, 3), example=torch.rand(1, 2))
    >>> flat = torch.rand(5, 9)
    >>> gradient = unflatten(task, flat)
    >>> {name: tuple(value.shape) for name, value in gradient.items()}, torch.equal(flatten(gradient), flat)
    ({'weight': (5, 3, 2), 'bias': (5, 3)}, True)
    """
    return task.apart(flat)
