"""Examines a model on an example: forward order, hidden state, second derivatives. Names what it refuses."""

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from refiner.core.precision import tensor_float32
from refiner.errors import DataError, RefinerError, UnsupportedModelError

_REMEDIES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.SyncBatchNorm, "use nn.BatchNorm2d or nn.GroupNorm"),
    (nn.RNNBase, "use an nn.RNNCell, nn.GRUCell or nn.LSTMCell in a loop, or attention"),
)
# In float64, and wide enough for a part that is always in float32, as the softmax of some transformers is;
# and for models that run in no float64, where rounding and kinks alone reach percents.
_TOLERANCE, _LOOSE_TOLERANCE = 1e-4, 0.05
_REMEDY = "replace it by operations that have second derivatives and keep no state"
_LONGEST = 200
# How a model that runs in one type says that it does not run in another.
UNFIT = (RuntimeError, TypeError, ValueError, AssertionError, LookupError)


def copied(model: nn.Module, known: Mapping[int, object]) -> nn.Module:
    """A copy of the model, with what is `known` by its id in its place."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            remedy = "give the plain module that it was made from"
            raise _uncopied(name, module, "it is compiled by torch.jit", remedy)
    try:
        return copy.deepcopy(model, dict(known))
    except Exception as error:
        # Only now: a look at every attribute takes as long as the copy.
        for name, module in model.named_modules():
            for key, value in vars(module).items():
                if key == "_modules":
                    continue
                if isinstance(value, Tensor) and not value.is_leaf:
                    remedy = (
                        "keep none in the module; for nn.utils.weight_norm use "
                        "nn.utils.parametrizations.weight_norm"
                    )
                    reason = f"its {key!r} is a computed tensor, no parameter"
                    raise _uncopied(name, module, reason, remedy) from error
                try:
                    copy.deepcopy(value, dict(known))
                except Exception as inner:
                    reason = f"its {key!r}: {line(inner)}"
                    raise _uncopied(name, module, reason, "keep it outside of the model") from error
        raise _uncopied("", model, line(error), "build it of modules that can be copied") from error


def _uncopied(name: str, module: nn.Module, reason: str, remedy: str) -> UnsupportedModelError:
    named = f"{name or 'the model'} ({type(module).__name__})"
    return UnsupportedModelError(f"{named}: the model can't be copied ({reason}); {remedy}")


def run(model: nn.Module, state: Mapping[str, Tensor], example: Tensor) -> tuple[Tensor, list[str]]:
    """The model's output, and the names of its modules in the order in which they start to run."""
    order: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _m, _a, name=name: order.append(name))
        for name, module in model.named_modules()
    ]
    before = {name: value.clone() for name, value in state.items()}
    live = {name: value.clone() for name, value in state.items()}
    try:
        out = torch.func.functional_call(model, live, (example,))
    except RefinerError:
        raise
    except Exception as error:
        raise DataError(f"example = {tuple(example.shape)}: the model refuses it ({line(error)})") from error
    finally:
        for handle in handles:
            handle.remove()
    for name, value in live.items():
        if not torch.equal(value, before[name]):
            owner = model.get_submodule(name.rpartition(".")[0])
            raise _refusal(name.rpartition(".")[0], owner, f"changes its state {name!r} at every pass")
    if not isinstance(out, Tensor) or not out.isfinite().all():
        raise DataError("model output: expected one tensor of finite scores")
    return out, _placed(list(dict.fromkeys(order)), [name for name, _ in model.named_modules()])


def _placed(order: list[str], names: list[str]) -> list[str]:
    """All module names; one that is never called itself stands with the nearest parent that is."""
    position = {name: index for index, name in enumerate(order)}

    def place(name: str) -> int:
        while name not in position and name:
            name = name.rpartition(".")[0]
        return position.get(name, len(order))

    return sorted(names, key=place)


def twice(
    model: nn.Module,
    state: Mapping[str, Tensor],
    names: Iterable[str],
    example: Tensor,
    loss: Callable[[Tensor], Tensor],
) -> None:
    """Refuse a model whose victim-batched gradient has no derivative with respect to the input."""
    state, example = _wide(model, state, example, loss)
    inputs = _calls(model, state, example)
    parameters = {name: state[name] for name in names}

    def objective(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, {**state, **p}, (x,)))

    failure = _second_order(objective, parameters, (example,))
    if failure is None:
        return
    # Tied tensors have one name in the model, and another in a module.
    values = {id(t): state[k] for k, t in (*model.named_parameters(), *model.named_buffers())}
    # The innermost module that fails alone is the one to name: children come before their parents.
    for name, module in reversed(list(model.named_modules())):
        if name in inputs:
            own = {k: values[id(p)] for k, p in module.named_parameters()}
            rest = {k: values[id(b)] for k, b in module.named_buffers()}
            reason = _second_order(_scalar(module, rest), own, inputs[name])
            if reason is not None:
                raise _refusal(name, module, reason)
    raise _refusal("", model, failure)


def _wide(
    model: nn.Module, state: Mapping[str, Tensor], example: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Mapping[str, Tensor], Tensor]:
    """State and example in float64 where the model runs in it: a fault stands out there from rounding."""
    try:
        wide = {name: value.double() if value.is_floating_point() else value for name, value in state.items()}
        with torch.no_grad():
            loss(torch.func.functional_call(model, dict(wide), (example.double(),)))
    except torch.OutOfMemoryError:
        raise
    except UNFIT:
        return state, example
    return wide, example.double()


def _scalar(module: nn.Module, rest: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    def objective(p: Mapping[str, Tensor], *args: Tensor) -> Tensor:
        out = torch.func.functional_call(module, {**rest, **p}, args)
        parts = out if isinstance(out, tuple) else (out,)
        # A curved function, so that a linear module too has a second derivative to compute.
        return torch.stack([t.sin().sum() for t in parts if isinstance(t, Tensor)]).sum()

    return objective


def _second_order(
    objective: Callable[..., Tensor], parameters: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> str | None:
    """Why the gradient of `objective`, batched over two victims, can't be differentiated; None if it can."""
    pair = tuple(torch.stack((t, t)).detach().requires_grad_(t.is_floating_point()) for t in inputs)
    wanted = [t for t in pair if t.requires_grad]
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), tensor_float32(False):
            if parameters:
                gradient = torch.func.vmap(torch.func.grad(objective), in_dims=(None, *(0 for _ in pair)))
                outputs = list(gradient(parameters, *pair).values())
            else:
                value = torch.func.vmap(objective, in_dims=(None, *(0 for _ in pair)))(parameters, *pair)
                outputs = list(torch.autograd.grad(value.sum(), wanted, create_graph=True))
            total = torch.stack([t.square().sum() for t in outputs]).sum()
            if not total.requires_grad:
                return "its gradient does not depend on the input in a way that can be differentiated"
            batched = torch.autograd.grad(total, wanted, allow_unused=True)
            alone = _alone(objective, parameters, inputs)
    except RefinerError:
        raise
    except Exception as error:
        return line(error)
    # Some fused operations have a second derivative that is wrong under vmap, and say nothing.
    for many, one in zip(batched, alone, strict=True):
        allowed = _TOLERANCE if one is not None and one.dtype == torch.float64 else _LOOSE_TOLERANCE
        if many is not None and one is not None and (many[0] - one).norm() > allowed * one.norm():
            return "its second derivative is wrong when victims are batched"
    return None


def _alone(
    objective: Callable[..., Tensor], parameters: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The same second derivative for one victim by plain autograd."""
    single = tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs)
    wanted = [t for t in single if t.requires_grad]
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    over = list(leaves.values()) or wanted
    outputs = torch.autograd.grad(objective(leaves, *single), over, create_graph=True, materialize_grads=True)
    # All the way back: `torch.autograd.grad` leaves out the node that says "not twice".
    torch.stack([t.square().sum() for t in outputs]).sum().backward()  # type: ignore[no-untyped-call]
    return tuple(t.grad for t in wanted)


def _calls(model: nn.Module, state: Mapping[str, Tensor], example: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """The tensors that each module is called with on the example; calls with other arguments are left out."""
    seen: dict[str, tuple[Tensor, ...]] = {}

    def note(name: str, args: tuple[object, ...]) -> None:
        tensors = tuple(a for a in args if isinstance(a, Tensor))
        if name not in seen and len(tensors) == len(args) and tensors:
            seen[name] = tensors

    handles = [
        module.register_forward_pre_hook(lambda _m, args, name=name: note(name, args))
        for name, module in model.named_modules()
    ]
    try:
        torch.func.functional_call(model, dict(state), (example,))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _refusal(name: str, module: nn.Module, reason: str) -> UnsupportedModelError:
    remedy = next((text for kind, text in _REMEDIES if isinstance(module, kind)), _REMEDY)
    if getattr(module, "inplace", False):
        remedy = "make it with inplace=False"
    return UnsupportedModelError(f"{name or 'the model'} ({type(module).__name__}): {reason}; {remedy}")


def line(error: Exception) -> str:
    """The first sentence of an error, cut where it is long; with its kind, if that is an uncommon one.

    >>> line(KeyError("pixels")), line(RuntimeError("too large. Try less.")), line(AssertionError())
    ("KeyError: 'pixels'", 'too large', 'AssertionError')
    """
    text = str(error).strip().splitlines()
    sentence = text[0].split(". ")[0].rstrip(".") if text else ""
    if len(sentence) > _LONGEST:
        sentence = sentence[: _LONGEST - 3] + "..."
    if not sentence or isinstance(error, RuntimeError):
        return sentence or type(error).__name__
    return f"{type(error).__name__}: {sentence}"
