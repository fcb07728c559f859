"""Task: a model and its loss as a pure function of (parameters, x, y), with its layers in forward order."""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from refiner.core import model_structure, model_validation
from refiner.core.cuda_graphs import CudaGraphCache
from refiner.core.input_checks import check_devices, check_recording, check_types, input_error, is_dense
from refiner.core.input_range import InputRange, check_channels, check_input_range, from_unit_range
from refiner.core.loss_targets import accepted_targets
from refiner.core.wrappers import unwrap_model
from refiner.errors import DataError

Loss = Callable[[Tensor, Tensor], Tensor]
"""`loss(scores [B, outputs], targets)` → one number; see `loss_targets` for the kinds of targets."""
Parameters = Mapping[str, Tensor]
"""Parameters by name, `shape` each, or `[V, *shape]` where every victim has its own."""


@dataclass(frozen=True)
class Layer:
    """The trainable parameters that one module owns directly.

    Args:
        name: The module's name, empty for the model itself.
        parameters: The parameters' full names.
    """

    name: str
    parameters: tuple[str, ...]


class Task:
    """A model and its loss, validated once on an example batch and then free of hidden state.

    Normalisation uses each victim's own batch statistics and updates none; dropout is off. The values of
    parameters and buffers are those of the model at every use. The model's structure and other attributes are
    copied: after a change of these make a new task.

    Args:
        model: Any module that maps inputs `[B, *input]` to scores `[B, classes]`, or to an object with such
            scores as `logits`, and can be differentiated twice. DistributedDataParallel, DataParallel and
            torch.compile are removed with a warning, and from the names of parameters.
        example: A batch of inputs on the model's device; its shape, type and range are used.
        loss: Maps scores and targets to one number, by default the mean cross-entropy. Targets are class
            labels `[B]`, or floating-point values `[B, outputs]` or `[B]`: soft labels, BCE, regression.

    Attributes:
        classes: The number of classes.
        input_shape: The shape of one input.
        layers: The layers in forward order.
        names: The names of the trainable parameters, layer by layer.
        shapes: The shapes of the trainable parameters by name.
        size: The number of trainable parameters, N.

    Raises:
        DataError: The model, the example or the loss is not usable, such as for NaN or the wrong device.
        UnsupportedModelError: A module can't be differentiated twice or changes its buffers; the message
            names it and a remedy.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> [layer.name for layer in task.layers]
    ['body.0', 'body.2', 'body.4', 'head']
    >>> task.classes, task.size
    (10, 15826)
    """

    def __init__(self, model: nn.Module, example: Tensor, loss: Loss = F.cross_entropy) -> None:
        check_types(model, "example", example)
        model = unwrap_model(model)
        check_devices(model, "example", example)
        check_recording(example, *model.parameters())
        if not bool(example.isfinite().all()):
            raise _not_finite("example", "example:")
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise _not_finite("model", f"model: {name}")
        # An error of the user's code may quote what it was given: it gets no data.
        example = model_validation.random_like(example[:2])
        self.model = model
        self.models: Tensor | None = None
        self.input_range: InputRange | None = None
        """What inputs in 0..1 are mapped to before the model, see `with_unit_inputs`; None for no map."""
        self.loss_function = loss
        self.graphs = CudaGraphCache(capacity=8)
        """Recorded CUDA graphs of this task's functions, also those of a defence."""
        self.input_shape = tuple(example.shape[1:])
        self._structure = model_structure.copy_structure(model)
        remaining = {name for name, _ in self._structure.named_buffers()}
        self._dropped_buffers = frozenset(name for name, _ in model.named_buffers() if name not in remaining)
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise DataError(
                "model: no parameter requires a gradient",
                field="model",
                value=model,
                expected="a trainable parameter",
            )
        outputs, order = model_validation.run_once(self._structure, self._state(), example)
        if outputs.ndim != 2:
            raise DataError(field="model output", value=tuple(outputs.shape), expected="scores [B, classes]")
        self.classes = outputs.shape[1]
        self.layers = tuple(
            Layer(name, owned)
            for name in order
            if (
                owned := tuple(
                    p for p in model_structure.direct_parameters(self._structure, name) if p in trainable
                )
            )
        )
        self.names = tuple(name for layer in self.layers for name in layer.parameters)
        self.shapes = {name: model.get_parameter(name).shape for name in self.names}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        self.targets = accepted_targets(loss, outputs)
        """An example of every kind of target that the loss takes."""
        target = next(iter(self.targets.values()))
        model_validation.check_second_order(
            self._structure, self._state(), self.names, example, lambda scores: _loss(loss, scores, target)
        )

    def with_models(self, models: Tensor) -> Self:
        """The same task with a model of its own for every victim.

        Args:
            models: The parameters of V models as rows, `[V, N]` in the order of `names`; they may be changed
                in place later.

        Returns:
            A task that shares all else with this one.

        Raises:
            DataError: `models` is not a dense matrix with one column per parameter.

        >>> task = Task(nn.Linear(2, 1, bias=False), example=torch.rand(3, 2))
        >>> task.with_models(torch.zeros(5, task.size)).parameters()["weight"].shape
        torch.Size([5, 1, 2])
        """
        if not is_dense(models) or models.ndim != 2 or models.shape[1] != self.size:
            raise input_error("models", models, f"dense [V, {self.size}]")
        task = copy.copy(self)
        task.models = models
        return task

    def with_unit_inputs(self, input_range: InputRange) -> Self:
        """The same task for inputs in 0..1, which it maps to the range that the model expects.

        Args:
            input_range: `(low, high)`, or `((l1, l2, l3), (h1, h2, h3))` for three channels.

        Returns:
            A task that shares all else with this one.

        Raises:
            SettingError: `input_range` is no range, or has another number of channels.
        """
        check_channels(check_input_range(input_range), self.input_shape)
        task = copy.copy(self)
        task.input_range = input_range
        return task

    def parameters(self) -> dict[str, Tensor]:
        """The current trainable parameters, layer by layer, detached: the model's or those of `with_models`.

        Returns:
            Name → `shape`, or `[V, *shape]` if every victim has its own model.
        """
        return self.all_tensors()[0]

    def non_trainable(self) -> dict[str, Tensor]:
        """The model's other tensors as they are now: frozen parameters and buffers, by name."""
        return self.all_tensors()[1]

    def all_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """`parameters()` and `non_trainable()` from one walk through the model, slow for a deep one."""
        rest = self._state()
        shared = {name: rest.pop(name) for name in self.names}
        return shared if self.models is None else self.unflatten(self.models), rest

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """The rows of a matrix as parameters or gradients by name: the inverse of `flatten`.

        Args:
            flat: `[V, N]`, with the columns in the order of `names`.

        Returns:
            Name → `[V, *shape]`, views of `flat`.

        >>> task = Task(nn.Linear(2, 3), example=torch.rand(1, 2))
        >>> {name: tuple(value.shape) for name, value in task.unflatten(torch.rand(5, 9)).items()}
        {'weight': (5, 3, 2), 'bias': (5, 3)}
        """
        columns = torch.split(flat, [shape.numel() for shape in self.shapes.values()], dim=1)
        named = zip(self.shapes.items(), columns, strict=True)
        return {name: values.view(len(flat), *shape) for (name, shape), values in named}

    def graphed_call(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """The result of `function(parameters, *inputs)`; on a GPU later calls replay a CUDA graph.

        Args:
            key: Names everything that the function depends on beside its arguments.
            function: Maps the current parameters and the inputs to one tensor.
            inputs: Tensors on the model's device.

        Returns:
            The function's result.

        >>> task = Task(nn.Linear(2, 1, bias=False), example=torch.rand(3, 2))
        >>> task.graphed_call("double", lambda p, x: 2 * task.scores(p, x), torch.zeros(1, 2))
        tensor([[0.]])
        """
        (result,) = self.graphed_outputs(key, lambda *tensors: (function(*tensors),), *inputs)
        return result

    def graphed_outputs(
        self, key: Hashable, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """`graphed_call` of a function that returns several tensors.

        Args:
            key: As in `graphed_call`.
            function: Maps the current parameters and the inputs to a tuple of tensors.
            inputs: As in `graphed_call`.

        Returns:
            The function's results.
        """
        parameters, non_trainable = self.all_tensors()
        count = len(inputs)  # not `inputs` itself: the recording would keep a client's data alive

        def on_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = dict(zip(self.names, tensors[count:], strict=True))
            return function(values, *tensors[:count])

        # A recording reads the non-trainable tensors at the addresses that they have now.
        full_key = (key, self.input_range, tuple(t.data_ptr() for t in non_trainable.values()))
        return self.graphs(full_key, on_tensors, [*inputs, *parameters.values()])

    def scores(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Class scores of one batch.

        Args:
            parameters: One model's parameters by name.
            x: Inputs `[B, *input]`.

        Returns:
            `[B, classes]`.
        """
        if self.input_range is not None:
            x = from_unit_range(x, self.input_range, len(self.input_shape))
        # Only the plain attention kernel has a second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            out: Tensor = torch.func.functional_call(self._structure, {**self._state(), **parameters}, (x,))
        return out

    def loss(self, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one batch, a pure function of its arguments; the scores are at least float32.

        Args:
            parameters: One model's parameters by name.
            x: Inputs `[B, *input]`.
            y: Labels `[B]`, or probabilities `[B, classes]`.

        Returns:
            One number.
        """
        return self.loss_of_scores(self.scores(parameters, x), y)

    def loss_of_scores(self, scores: Tensor, y: Tensor) -> Tensor:
        """The loss of one batch from its scores, in float32 at least.

        Args:
            scores: `[B, classes]`.
            y: Labels `[B]`, or probabilities `[B, classes]`.

        Returns:
            One number.
        """
        return _loss(self.loss_function, scores.to(torch.promote_types(scores.dtype, torch.float32)), y)

    @cached_property
    def supports_bfloat16(self) -> bool:
        """Whether the model runs with its inputs and parameters in bfloat16."""
        if any(value.is_floating_point() for value in self.non_trainable().values()):
            return False
        state = self._state()
        parameters = {name: state[name].bfloat16() for name in self.names}
        device = next(iter(parameters.values())).device
        try:
            scores = self.scores(parameters, torch.zeros(2, *self.input_shape, device=device).bfloat16())
        except torch.OutOfMemoryError:
            raise
        except model_validation.WRONG_DTYPE_ERRORS:
            return False
        return scores.dtype == torch.bfloat16

    def modules(self) -> Iterator[nn.Module]:
        """The innermost modules of the model's structure, for hooks."""
        return (module for module in self._structure.modules() if not list(module.children()))

    def module(self, name: str) -> nn.Module:
        """A module of the model's structure by name, for hooks."""
        return self._structure.get_submodule(name)

    def _state(self) -> dict[str, Tensor]:
        """The model's current tensors by name, without the buffers that the structure has dropped."""
        tensors = model_structure.named_tensors(self.model)
        return {name: value for name, value in tensors.items() if name not in self._dropped_buffers}


def _loss(loss: Loss, scores: Tensor, y: Tensor) -> Tensor:
    """The loss; values are compared in the dtype of the scores."""
    return loss(scores, y.to(scores.dtype) if y.is_floating_point() else y)


def _not_finite(field: str, name: str) -> DataError:
    return DataError(f"{name} holds NaN or infinity", field=field, value=name, expected="finite values")
