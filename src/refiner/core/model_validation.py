"""Validates a model on an example: forward order, state, second derivatives; errors name the module."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from refiner.core.model_failures import Failure, explain_failure, summarise_error
from refiner.core.precision import tensor_float32
from refiner.errors import DataError, RefinerError, UnsupportedModelError

_REMEDIES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.SyncBatchNorm, "use nn.BatchNorm2d or nn.GroupNorm"),
    (nn.RNNBase, "use an nn.RNNCell, nn.GRUCell or nn.LSTMCell in a loop, or attention"),
)
_DEFAULT_REMEDY = "replace it by operations that have second derivatives and keep no state"
_NO_AUTOCAST = "refiner runs models in full precision: remove it, or set a trainer's bf16 and fp16 to False"
# For float64, and large enough for a part that always runs in float32, as the softmax of some transformers
# does; and for models that don't run in float64, where rounding and kinks alone reach some per cent.
_TOLERANCE, _LOOSE_TOLERANCE = 1e-4, 0.05
WRONG_DTYPE_ERRORS = (RuntimeError, TypeError, ValueError, AssertionError, LookupError)
"""What a model may raise that runs in one dtype and not in another."""


def random_like(example: Tensor) -> Tensor:
    """Random values between the smallest and the largest of `example`, the same ones every time.

    >>> random_like(torch.tensor([[3, 5, 4]])).aminmax().max <= 5
    tensor(True)
    """
    low, high = example.aminmax()
    uniform = torch.rand(example.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = low.double() + (high.double() - low.double()) * uniform.to(example.device)
    return (values if example.is_floating_point() else values.round()).to(example.dtype)


def run_once(model: nn.Module, state: Mapping[str, Tensor], example: Tensor) -> tuple[Tensor, list[str]]:
    """The model's output, and the names of its modules in the order in which they start to run.

    Raises:
        DataError: The model fails on the example, or its output is no tensor of finite scores.
        UnsupportedModelError: The model changes its state in a forward pass, or switches on torch.autocast.
    """
    order: list[str] = []
    device = example.device.type

    def start(module: nn.Module, name: str) -> None:
        order.append(name)
        # Convolutions would fail under it later, at the first batch.
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            reason = "runs under torch.autocast, which the model switches on in its forward pass"
            raise _unsupported(name, module, reason, _NO_AUTOCAST)

    handles = [
        module.register_forward_pre_hook(lambda module, _args, name=name: start(module, name))
        for name, module in model.named_modules()
    ]
    before = {name: value.clone() for name, value in state.items()}
    after = {name: value.clone() for name, value in state.items()}
    try:
        out = torch.func.functional_call(model, after, (example,))
    except RefinerError:
        raise
    except Exception as error:
        raise DataError(
            f"example = {tuple(example.shape)}: the model fails on it ({summarise_error(error)})",
            field="example",
            value=tuple(example.shape),
            expected="inputs that the model accepts",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    for name, value in after.items():
        if not torch.equal(value, before[name]):
            owner = name.rpartition(".")[0]
            reason = f"changes its state {name!r} at every pass"
            raise _unsupported(owner, model.get_submodule(owner), reason)
    if not isinstance(out, Tensor) or not out.isfinite().all():
        expected = "one tensor of finite scores"
        raise DataError(
            f"model output: expected {expected}", field="model output", value=out, expected=expected
        )
    return out, _sort_by_call(list(dict.fromkeys(order)), [name for name, _ in model.named_modules()])


def _sort_by_call(order: list[str], names: list[str]) -> list[str]:
    """All module names in call order; a module that is never called ranks with its nearest called parent."""
    position = {name: index for index, name in enumerate(order)}

    def rank(name: str) -> int:
        while name not in position and name:
            name = name.rpartition(".")[0]
        return position.get(name, len(order))

    return sorted(names, key=rank)


def check_loss(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor) -> None:
    """Raise a DataError unless `loss` maps scores and labels, or other targets, to one number."""
    expected = "one number from loss(scores [B, classes], labels [B])"
    try:
        value = loss(outputs, labels)
    except RefinerError:
        raise
    except Exception as error:
        message = f"loss: expected {expected}, but it fails ({summarise_error(error)})"
        kind = type(error).__name__
        raise DataError(message, field="loss", value=f"a {kind}", expected=expected) from error
    if not isinstance(value, Tensor) or value.numel() != 1 or value.ndim:
        message = f"loss: expected {expected}; is its reduction 'mean'?"
        raise DataError(message, field="loss", value=value, expected=expected)


def check_second_order(
    model: nn.Module,
    state: Mapping[str, Tensor],
    names: Iterable[str],
    example: Tensor,
    loss: Callable[[Tensor], Tensor],
) -> None:
    """Raise an UnsupportedModelError unless the victim-batched gradient is differentiable in the input."""
    state, example = _in_float64(model, state, example, loss)
    inputs = _record_inputs(model, state, example)
    parameters = {name: state[name] for name in names}

    def objective(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, {**state, **p}, (x,)))

    failure = _second_order_problem(objective, parameters, (example,))
    if failure is None:
        return
    # Tied tensors have one name in the model, and another in a module.
    values = {id(t): state[k] for k, t in (*model.named_parameters(), *model.named_buffers())}
    # Name the innermost module that fails by itself: children come before their parents.
    for name, module in reversed(list(model.named_modules())):
        if name in inputs:
            module_parameters = {k: values[id(p)] for k, p in module.named_parameters()}
            buffers = {k: values[id(b)] for k, b in module.named_buffers()}
            problem = _second_order_problem(
                _module_objective(module, buffers), module_parameters, inputs[name]
            )
            # A module may fail by itself for another reason, harmless in the model: an in-place activation
            # of an input that requires a gradient.
            if problem is not None and problem.cause == failure.cause:
                raise _unsupported(name, module, problem.reason, problem.remedy)
    raise _unsupported("", model, failure.reason, failure.remedy)


def _in_float64(
    model: nn.Module, state: Mapping[str, Tensor], example: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Mapping[str, Tensor], Tensor]:
    """State and example in float64 if the model runs in it: rounding can't be mistaken for an error there."""
    try:
        wide = {name: value.double() if value.is_floating_point() else value for name, value in state.items()}
        with torch.no_grad():
            loss(torch.func.functional_call(model, dict(wide), (example.double(),)))
    except torch.OutOfMemoryError:
        raise
    except WRONG_DTYPE_ERRORS:
        return state, example
    return wide, example.double()


def _module_objective(module: nn.Module, buffers: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    """A scalar function of a module's parameters and inputs."""

    def objective(p: Mapping[str, Tensor], *args: Tensor) -> Tensor:
        out = torch.func.functional_call(module, {**buffers, **p}, args)
        outputs = out if isinstance(out, tuple) else (out,)
        # A non-linear function, so that a linear module too has a second derivative to compute.
        return torch.stack([t.sin().sum() for t in outputs if isinstance(t, Tensor)]).sum()

    return objective


def _second_order_problem(
    objective: Callable[..., Tensor], parameters: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> Failure | None:
    """Why the gradient of `objective`, batched over two victims, can't be differentiated; None if it can."""
    pair = tuple(torch.stack((t, t)).detach().requires_grad_(t.is_floating_point()) for t in inputs)
    differentiable = [t for t in pair if t.requires_grad]
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), tensor_float32(False):
            if parameters:
                gradient = torch.func.vmap(torch.func.grad(objective), in_dims=(None, *(0 for _ in pair)))
                outputs = list(gradient(parameters, *pair).values())
            else:
                value = torch.func.vmap(objective, in_dims=(None, *(0 for _ in pair)))(parameters, *pair)
                outputs = list(torch.autograd.grad(value.sum(), differentiable, create_graph=True))
            total = torch.stack([t.square().sum() for t in outputs]).sum()
            if not total.requires_grad:
                return Failure(
                    "its gradient does not depend on the input in a way that can be differentiated"
                )
            batched = torch.autograd.grad(total, differentiable, allow_unused=True)
            single = _single_victim_derivative(objective, parameters, inputs)
    except RefinerError:
        raise
    except Exception as error:
        return explain_failure(error)
    # Some fused operations have a second derivative that is silently wrong under vmap.
    for actual, expected in zip(batched, single, strict=True):
        if actual is None or expected is None:
            continue
        tolerance = _TOLERANCE if expected.dtype == torch.float64 else _LOOSE_TOLERANCE
        if (actual[0] - expected).norm() > tolerance * expected.norm():
            return Failure("its second derivative is wrong when victims are batched")
    return None


def _single_victim_derivative(
    objective: Callable[..., Tensor], parameters: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The same second derivative for one victim by plain autograd."""
    leaves = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs)
    differentiable = [t for t in leaves if t.requires_grad]
    parameter_leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    over = list(parameter_leaves.values()) or differentiable
    value = objective(parameter_leaves, *leaves)
    outputs = torch.autograd.grad(value, over, create_graph=True, materialize_grads=True)
    # All the way back: `torch.autograd.grad` would skip the node that forbids a second derivative.
    torch.stack([t.square().sum() for t in outputs]).sum().backward()  # type: ignore[no-untyped-call]
    return tuple(t.grad for t in differentiable)


def _record_inputs(
    model: nn.Module, state: Mapping[str, Tensor], example: Tensor
) -> dict[str, tuple[Tensor, ...]]:
    """The tensors that each module is called with on the example; calls with other arguments are left out."""
    inputs: dict[str, tuple[Tensor, ...]] = {}

    def record(name: str, args: tuple[object, ...]) -> None:
        tensors = tuple(a for a in args if isinstance(a, Tensor))
        if name not in inputs and len(tensors) == len(args) and tensors:
            inputs[name] = tensors

    handles = [
        module.register_forward_pre_hook(lambda _m, args, name=name: record(name, args))
        for name, module in model.named_modules()
    ]
    try:
        torch.func.functional_call(model, dict(state), (example,))
    finally:
        for handle in handles:
            handle.remove()
    return inputs


def _unsupported(
    name: str, module: nn.Module, reason: str, remedy: str | None = None
) -> UnsupportedModelError:
    if remedy is None:
        remedy = next((text for cls, text in _REMEDIES if isinstance(module, cls)), _DEFAULT_REMEDY)
        if getattr(module, "inplace", False):
            remedy = "make it with inplace=False"
    return UnsupportedModelError(
        f"{name or 'the model'} ({type(module).__name__}): {reason}; {remedy}",
        field="model",
        value=module,
        expected=remedy,
    )
