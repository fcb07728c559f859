"""Victim-batched gradients: inputs `[V, B, ...]` give one gradient per victim, differentiable in x."""

from collections.abc import Mapping

import torch
from torch import Tensor

from refiner import checks
from refiner.core.input_checks import check_recording, describe_tensor, input_error, is_dense
from refiner.core.loss_targets import describe_targets, kind_of_target
from refiner.core.task import Parameters, Task
from refiner.errors import DataError

Gradients = dict[str, Tensor]
"""Gradients by parameter name, `[V, *shape]` each."""


def gradients(
    task: Task, x: Tensor, y: Tensor, *, parameters: Parameters | None = None, chunk: int | None = None
) -> Gradients:
    """The gradient of every victim's own loss with respect to the parameters.

    If `x` requires a gradient, the result can be differentiated with respect to it.

    Args:
        task: The model and loss.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`, or values `[V, B, classes]` or `[V, B]`. Their range is not checked: that would
            wait for a GPU.
        parameters: If not the model's: shared, name → `shape`, or each victim's own, name → `[V, *shape]`.
        chunk: How many victims are computed at a time; it bounds memory and changes results by rounding only.

    Returns:
        Name → `[V, *shape]`.

    Raises:
        DataError: A shape, dtype or device does not fit.
        SettingError: `chunk` is not an integer ≥ 1.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 2, 3, 32, 32), torch.zeros(3, 2, dtype=torch.long)
    >>> g = gradients(Task(LeNet(), example=x[0]), x, y)
    >>> g["head.bias"].shape
    torch.Size([3, 10])
    """
    values = _check_inputs(task, x, y, parameters)
    if chunk is not None:
        checks.integer("chunk", chunk, 1)
    size, per_victim, chunks = chunk or len(x), _per_victim(task, values), []
    for first in range(0, len(x), size):
        victims = slice(first, first + size)
        chunk_values = {name: value[victims] for name, value in values.items()} if per_victim else values
        chunks.append(_gradients_of_chunk(task, chunk_values, x[victims], y[victims]))
    return chunks[0] if len(chunks) == 1 else {n: torch.cat([c[n] for c in chunks]) for n in task.names}


def gradients_and_scores(
    task: Task, x: Tensor, y: Tensor, *, parameters: Parameters | None = None
) -> tuple[Gradients, Tensor]:
    """`gradients` and the scores of the same pass, neither differentiable.

    Args:
        task: The model and loss.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`, or values `[V, B, classes]` or `[V, B]`.
        parameters: As in `gradients`.

    Returns:
        Name → `[V, *shape]`, and scores `[V, B, classes]`.

    Raises:
        DataError: A shape, dtype or device does not fit.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 2, 3, 32, 32), torch.zeros(3, 2, dtype=torch.long)
    >>> gradients_and_scores(Task(LeNet(), example=x[0]), x, y)[1].shape
    torch.Size([3, 2, 10])
    """
    values, x = _check_inputs(task, x, y, parameters), x.detach()
    own_models = _per_victim(task, values)
    if len(x) == 1 and not own_models:
        gradient, scores = _gradients_of_victim(task, values, x[0], y[0])
        return gradient, scores[None]

    def loss(values: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores = task.scores(values, x)
        return task.loss_of_scores(scores, y), scores

    in_dims = (0 if own_models else None, 0, 0)
    both: tuple[Gradients, Tensor] = torch.func.vmap(torch.func.grad(loss, has_aux=True), in_dims=in_dims)(
        dict(values), x, y
    )
    return both


def graphed_gradients_and_scores(task: Task, x: Tensor, y: Tensor) -> tuple[Gradients, Tensor]:
    """`gradients_and_scores` of the current model; on a GPU calls of the same shapes replay a CUDA graph.

    Args:
        task: The model and loss.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`, or values `[V, B, classes]` or `[V, B]`.

    Returns:
        Name → `[V, *shape]`, and scores `[V, B, classes]`.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 2, 3, 32, 32), torch.zeros(3, 2, dtype=torch.long)
    >>> task = Task(LeNet(), example=x[0])
    >>> gradient, _ = graphed_gradients_and_scores(task, x, y)
    >>> torch.equal(gradient["head.bias"], gradients(task, x, y)["head.bias"])
    True
    """

    def flat(parameters: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gradient, scores = gradients_and_scores(task, x, y, parameters=parameters)
        return flatten(gradient), scores

    flat_gradient, scores = task.graphed_outputs("gradients", flat, x, y)
    return task.unflatten(flat_gradient), scores


def gradients_jvp(
    task: Task, x: Tensor, y: Tensor, tangent: Tensor, *, parameters: Parameters | None = None
) -> Gradients:
    """The exact directional derivative of `gradients` in x along `tangent`.

    Args:
        task: The model and loss.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`, or values `[V, B, classes]` or `[V, B]`.
        tangent: The direction, of x's shape and dtype.
        parameters: As in `gradients`.

    Returns:
        Name → `[V, *shape]`.

    Raises:
        DataError: A shape, dtype or device does not fit.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(1, 2, 3, 32, 32), torch.zeros(1, 2, dtype=torch.long)
    >>> derivative = gradients_jvp(Task(LeNet(), example=x[0]), x, y, torch.zeros_like(x))
    >>> float(derivative["head.bias"].abs().max())
    0.0
    """
    values = _check_inputs(task, x, y, parameters)
    if not is_dense(tangent) or tangent.shape != x.shape or tangent.dtype != x.dtype:
        raise input_error("tangent", tangent, f"dense {describe_tensor(x)}, as x")
    with torch.no_grad():
        pair = torch.func.jvp(lambda data: _batched_gradients(task, values, data, y), (x,), (tangent,))
    derivative: Gradients = pair[1]
    return derivative


def _check_inputs(task: Task, x: Tensor, y: Tensor, parameters: Parameters | None) -> Parameters:
    """The parameters to use; checks what needs no look at values, which a CUDA graph's recording forbids."""
    if not isinstance(task, Task):
        raise input_error("task", task, "a Task; make one with Task(model, example=x)")
    shape = task.input_shape
    if not is_dense(x) or not x.is_floating_point() or x.shape[2:] != shape or 0 in x.shape[:2]:
        expected = f"dense floating-point inputs [V, B, {', '.join(map(str, shape))}], V and B ≥ 1"
        raise input_error("x", x, expected)
    if not is_dense(y) or kind_of_target(y, x.shape[:2], task.classes) not in task.targets:
        expected = describe_targets(task.targets, x.shape[:2], task.classes)
        raise input_error("y", y, f"dense {expected}")
    check_recording(x)
    values = task.parameters() if parameters is None else _check_parameters(task, parameters)
    first = values[task.names[0]]
    if _per_victim(task, values) and len(first) != len(x):
        raise _error("parameters", f"of {len(first)} models", f"one for each of {len(x)} victims")
    if x.device != first.device or y.device != first.device:
        expected = f"both on the parameters' device, {first.device}"
        raise DataError(
            f"x on {x.device}, y on {y.device}: expected {expected}",
            field="x" if x.device != first.device else "y",
            value=str(x.device if x.device != first.device else y.device),
            expected=expected,
        )
    if x.dtype != first.dtype:
        raise _error("x", f"of {x.dtype}", f"the parameters' dtype, {first.dtype}")
    return values


def _error(field: str, actual: str, expected: str) -> DataError:
    return DataError(f"{field} {actual}: expected {expected}", field=field, value=actual, expected=expected)


def _check_parameters(task: Task, parameters: Parameters) -> Parameters:
    if not isinstance(parameters, Mapping):
        raise input_error("parameters", parameters, "tensors by name")
    missing = [name for name in task.names if name not in parameters]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        expected = f"all {len(task.names)} of the task"
        message = f"parameters: without {missing[0]}{more}, expected {expected}"
        raise DataError(message, field="parameters", value=missing[0], expected=expected)
    first_name = task.names[0]
    first = parameters[first_name]
    # All have an axis of victims if the first one does.
    per_victim = is_dense(first) and first.ndim == len(task.shapes[first_name]) + 1
    victims = first.shape[:1] if per_victim else None
    for name, shape in task.shapes.items():
        value = parameters[name]
        full_shape = shape if victims is None else victims + shape
        if not is_dense(value) or value.shape != full_shape:
            either = f" or [V, *{list(shape)}]" if name == first_name else ""
            raise input_error(f"parameters: {name}", value, f"dense {list(full_shape)}{either}")
        if name == first_name:
            dtype, device, is_float = value.dtype, value.device, value.is_floating_point()
        if value.dtype != dtype or value.device != device or not is_float:
            _check_same_kind(task, name, value, first)
    return parameters


def _check_same_kind(task: Task, name: str, value: Tensor, first: Tensor) -> None:
    """Raise if a parameter's dtype or device differs from the first one's where the model's does not."""
    model_value, model_first = task.model.get_parameter(name), task.model.get_parameter(task.names[0])
    same_dtype = model_value.dtype == model_first.dtype and first.is_floating_point()
    dtype = first.dtype if same_dtype else model_value.dtype
    if value.dtype != dtype:
        raise _error(f"parameters: {name}", f"of {value.dtype}", str(dtype))
    device = first.device if model_value.device == model_first.device else model_value.device
    if value.device != device:
        raise _error(f"parameters: {name}", f"on {value.device}", str(device))


def _batched_gradients(task: Task, parameters: Parameters, x: Tensor, y: Tensor) -> Gradients:
    single = torch.func.grad(task.loss)
    if _per_victim(task, parameters):
        own_models: Gradients = torch.func.vmap(single)(dict(parameters), x, y)
        return own_models
    if len(x) > 1:
        shared_model: Gradients = torch.func.vmap(single, in_dims=(None, 0, 0))(dict(parameters), x, y)
        return shared_model
    return {name: g[None] for name, g in single(dict(parameters), x[0], y[0]).items()}


def _gradients_of_chunk(task: Task, parameters: Parameters, x: Tensor, y: Tensor) -> Gradients:
    if len(x) > 1 or _per_victim(task, parameters) or (x.requires_grad and torch.is_grad_enabled()):
        # The graph that torch.func records leads to x alone: backward computes no second derivatives in θ.
        return _batched_gradients(task, parameters, x, y)
    return _gradients_of_victim(task, parameters, x[0], y[0])[0]


def _gradients_of_victim(
    task: Task, parameters: Parameters, x: Tensor, y: Tensor
) -> tuple[Gradients, Tensor]:
    """One victim's gradients, name → `[1, *shape]`, and scores `[B, classes]`, by plain autograd."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        scores = task.scores(leaves, x)
        loss = task.loss_of_scores(scores, y)
        values = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return {name: g[None] for name, g in zip(leaves, values, strict=True)}, scores.detach()


def _per_victim(task: Task, parameters: Parameters) -> bool:
    """Whether every victim has its own parameters."""
    first = task.names[0]
    return parameters[first].ndim > len(task.shapes[first])


def flatten(gradient: Mapping[str, Tensor]) -> Tensor:
    """All of a gradient as one matrix; `Task.unflatten` is the inverse.

    Args:
        gradient: Name → `[V, *shape]`.

    Returns:
        `[V, N]`, with the columns in the mapping's order.

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
    per_victim = _per_victim(task, parameters)
    return flatten({name: parameters[name] if per_victim else parameters[name][None] for name in task.names})
