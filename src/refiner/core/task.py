"""Task: a model and its loss as a pure function of (parameters, x, y), with its layers in forward order."""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from refiner.core import convolution, model_validation, normalization
from refiner.core.cuda_graphs import Captured
from refiner.core.input_checks import check_devices, check_recording, check_types, dense, kind
from refiner.errors import DataError, RefinerError

Loss = Callable[[Tensor, Tensor], Tensor]
Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layer:
    """The trainable parameters that one module owns directly."""

    name: str
    parameters: tuple[str, ...]


class Task:
    """A model and its loss, examined once on an example batch and then free of hidden state.

    Normalisation uses each victim's own batch statistics and updates none; dropout is off. A module
    that can't be differentiated twice, or that changes its buffers, is refused with its name and a remedy.
    Values of parameters and buffers are those of the model at every use; its structure, and what it is set by
    beside them, is copied: after a change of these make a new one.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> [layer.name for layer in task.layers]
    ['body.0', 'body.2', 'body.4', 'head']
    >>> task.classes, task.size
    (10, 15826)
    """

    def __init__(self, model: nn.Module, example: Tensor, loss: Loss = F.cross_entropy) -> None:
        check_types(model, "example", example)
        check_devices(model, "example", example)
        check_recording(example, *model.parameters())
        if not bool(example.isfinite().all()):
            raise DataError("example: holds NaN or infinity")
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise DataError(f"model: {name} holds NaN or infinity")
        example = example[:2]
        self.model = model
        self.models: Tensor | None = None
        self.loss_function = loss
        self._captured = Captured(capacity=8)
        self.input_shape = tuple(example.shape[1:])
        self._pure = _pure(model)
        kept = {name for name, _ in self._pure.named_buffers()}
        self._dropped = frozenset(name for name, _ in model.named_buffers() if name not in kept)
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise DataError("model: no parameter requires a gradient")
        outputs, order = model_validation.run(self._pure, self._state(), example)
        if outputs.ndim != 2:
            raise DataError(f"model output = {tuple(outputs.shape)}: expected scores [B, classes]")
        self.classes = outputs.shape[1]
        self.layers = tuple(
            Layer(name, owned)
            for name in order
            if (owned := tuple(p for p in _direct(self._pure, name) if p in trainable))
        )
        self.names = tuple(name for layer in self.layers for name in layer.parameters)
        self.shapes = {name: model.get_parameter(name).shape for name in self.names}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        labels = torch.zeros(len(example), dtype=torch.long, device=example.device)
        _check_loss(loss, outputs, labels)
        model_validation.twice(self._pure, self._state(), self.names, example, lambda out: loss(out, labels))

    def each(self, models: Tensor) -> Self:
        """The same task with a model for every victim: `models [V, N]`, which may be changed in place.

        >>> task = Task(nn.Linear(2, 1, bias=False), example=torch.rand(3, 2))
        >>> task.each(torch.zeros(5, task.size)).parameters()["weight"].shape
        torch.Size([5, 1, 2])
        """
        if not dense(models) or models.ndim != 2 or models.shape[1] != self.size:
            raise DataError(f"models = {kind(models)}: expected dense [V, {self.size}]")
        own = copy.copy(self)
        own.models = models
        return own

    def parameters(self) -> dict[str, Tensor]:
        """The model's trainable parameters as they are, layer by layer, detached; or those of `models`."""
        return self.held()[0]

    def fixed(self) -> dict[str, Tensor]:
        """What the model holds beside its trainable parameters: frozen ones and buffers, as they are now."""
        return self.held()[1]

    def held(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Both of these from one walk through the model, which for a deep one takes a while."""
        rest = self._state()
        shared = {name: rest.pop(name) for name in self.names}
        return shared if self.models is None else self.apart(self.models), rest

    def apart(self, flat: Tensor) -> dict[str, Tensor]:
        """Rows `[V, N]` of all parameters, one after another, as name → `[V, *shape]`."""
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=1)
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.view(len(flat), *shape) for (name, shape), piece in named}

    def replay(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`function(parameters, *inputs)` for the model as it is.

        On a GPU a call whose key and shapes come back is replayed without Python: `key` must name all else
        that the function depends on.

        >>> task = Task(nn.Linear(2, 1, bias=False), example=torch.rand(3, 2))
        >>> task.replay("double", lambda parameters, x: 2 * task.scores(parameters, x), torch.zeros(1, 2))
        tensor([[0.]])
        """
        parameters, fixed = self.held()
        count = len(inputs)  # what is recorded lives on, and must not hold a client's data

        def plain(*tensors: Tensor) -> tuple[Tensor]:
            values = dict(zip(self.names, tensors[count:], strict=True))
            return (function(values, *tensors[:count]),)

        # A recording reads the fixed tensors of the model where they lie now.
        now = (key, tuple(t.data_ptr() for t in fixed.values()))
        (found,) = self._captured(now, plain, [*inputs, *parameters.values()])
        return found

    def scores(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Class scores `[B, classes]` of inputs `[B, *input]`."""
        # Only the plain attention kernel has a second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            out: Tensor = torch.func.functional_call(self._pure, {**self._state(), **parameters}, (x,))
        return out

    def loss(self, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one victim's batch, a pure function of its three arguments; in float32 at least."""
        scores = self.scores(parameters, x)
        return self.loss_function(scores.to(torch.promote_types(scores.dtype, torch.float32)), y)

    @cached_property
    def takes_half(self) -> bool:
        """Whether the model runs with its inputs and parameters in bfloat16."""
        if any(value.is_floating_point() for value in self.fixed().values()):
            return False
        live = self._state()
        parameters = {name: live[name].bfloat16() for name in self.names}
        device = next(iter(parameters.values())).device
        try:
            scores = self.scores(parameters, torch.zeros(2, *self.input_shape, device=device).bfloat16())
        except torch.OutOfMemoryError:
            raise
        except model_validation.UNFIT:
            return False
        return scores.dtype == torch.bfloat16

    def modules(self) -> Iterator[nn.Module]:
        """The innermost modules of the model's structure, for hooks."""
        return (module for module in self._pure.modules() if not list(module.children()))

    def statistics(self, parameters: Parameters, x: Tensor, modules: Sequence[str]) -> list[Tensor]:
        """Mean and variance `[2, channels]` of what each of `modules` is given for inputs `[B, *input]`."""
        found: dict[str, Tensor] = {}

        def note(name: str, given: Tensor) -> None:
            var, mean = torch.var_mean(given.transpose(0, 1).flatten(1), dim=1, correction=0)
            found[name] = torch.stack([mean, var])

        handles = [
            self._pure.get_submodule(name).register_forward_pre_hook(
                lambda _module, args, name=name: note(name, args[0])
            )
            for name in modules
        ]
        try:
            self.scores(parameters, x)
        finally:
            for handle in handles:
                handle.remove()
        return [found[name] for name in modules]

    @contextmanager
    def replaced(self, module: str, call: Callable[[Any, Tensor], Tensor | None]) -> Iterator[None]:
        """Within it, `call(module, input)` stands in for what the named module gives, unless it is None."""
        inner = self._pure.get_submodule(module)
        handle = inner.register_forward_hook(lambda owner, args, _given: call(owner, args[0]))
        try:
            yield
        finally:
            handle.remove()

    def features(self, parameters: Parameters, x: Tensor, module: str) -> Tensor:
        """What the named module is given for inputs `[B, *input]`."""
        found: list[Tensor] = []
        with self.replaced(module, lambda _owner, given: found.append(given)):
            self.scores(parameters, x)
        if len(found) != 1 or len(found[0]) != len(x):
            raise DataError(f"{module}: expected a module that runs once in a pass, on one row a sample")
        return found[0]

    def _state(self) -> dict[str, Tensor]:
        live: dict[str, Tensor] = {}
        met: set[int] = set()

        # As `named_parameters` and `named_buffers` name them, which each walk through all modules, slowly.
        def visit(module: nn.Module, prefix: str) -> None:
            for key, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None and id(value) not in met:
                    met.add(id(value))
                    live[prefix + key] = value.detach()
            for key, child in module._modules.items():
                if child is not None:
                    visit(child, f"{prefix}{key}.")

        visit(self.model, "")
        return {name: value for name, value in live.items() if name not in self._dropped}


def _check_loss(loss: Loss, outputs: Tensor, labels: Tensor) -> None:
    wanted = "loss: expected one number from loss(scores [B, classes], labels [B])"
    try:
        value = loss(outputs, labels)
    except RefinerError:
        raise
    except Exception as error:
        raise DataError(f"{wanted}, but it fails ({model_validation.line(error)})") from error
    if not isinstance(value, Tensor) or value.numel() != 1 or value.ndim:
        raise DataError(f"{wanted}; is its reduction 'mean'?")


def _pure(model: nn.Module) -> nn.Module:
    """The model's structure without its tensors: in evaluation mode, without running statistics."""
    # Shapes in place of values, one for each tensor: `.to("meta")` would untie tied weights.
    shapes: dict[int, object] = {id(b): b.detach().to("meta") for b in model.buffers()}
    shapes |= {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad) for p in model.parameters()
    }
    pure = model_validation.copied(model, shapes).eval()
    normalization.write_out(pure)
    convolution.write_out(pure)
    return pure


def _direct(model: nn.Module, name: str) -> list[str]:
    prefix = f"{name}." if name else ""
    return [prefix + p for p, _ in model.get_submodule(name).named_parameters(recurse=False)]
