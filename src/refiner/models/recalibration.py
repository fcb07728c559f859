"""Recomputes batch-norm running statistics from chosen data, so that no client's private batch sets them."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from refiner import checks
from refiner.core.input_checks import input_error
from refiner.errors import DataError, UnsupportedModelError


def recalibrate(model: nn.Module, batches: Iterable[Tensor], momentum: float | None = None) -> None:
    """Recompute the batch-norm running statistics of `model` over `batches` of inputs; nothing else changes.

    Args:
        model: A model with at least one batch-norm layer that tracks running statistics.
        batches: Tensors of inputs, as the model takes them.
        momentum: None for averages in which each batch has the same weight, or the weight of the newest batch
            in an exponential average, in (0, 1].

    Raises:
        DataError: The model or a batch is not usable, or the statistics are not finite; the old ones are
            restored.
        SettingError: `momentum` is out of its range.
        UnsupportedModelError: The model has no batch-norm layer with running statistics.

    >>> from refiner.models import resnet10
    >>> model = resnet10(norm="batch", input_shape=(3, 8, 8))
    >>> recalibrate(model, [torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8)])
    >>> int(model.stem[1].num_batches_tracked)
    2
    """
    if momentum is not None:
        checks.number("momentum", momentum, 0, 1, above=True)
    if not isinstance(model, nn.Module):
        raise input_error("model", model, "a torch.nn.Module")
    if not isinstance(batches, Iterable):
        raise input_error("batches", batches, "tensors of inputs, as a list")
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers:
        raise UnsupportedModelError(
            f"{type(model).__name__}: expected a batch-norm layer with running statistics, found none",
            field="model",
            value=model,
            expected="a batch-norm layer with running statistics",
        )
    modes = [(module, module.training) for module in model.modules()]
    before = [(layer, layer.momentum, _statistics(layer)) for layer in layers]
    finished = False
    try:
        # Only batch norm is in training mode: dropout and the like must not change the statistics.
        model.eval()
        for layer in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = momentum
        _run_batches(model, batches)
        _check_finite(layers)
        finished = True
    finally:
        for module, training in modes:
            module.training = training
        for layer, old_momentum, statistics in before:
            layer.momentum = old_momentum
            if not finished:
                layer.load_state_dict(statistics, strict=False)


def _statistics(layer: _BatchNorm) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in layer.named_buffers(recurse=False)}


def _run_batches(model: nn.Module, batches: Iterable[Tensor]) -> None:
    count = 0
    with torch.no_grad():
        for batch in batches:
            if not isinstance(batch, Tensor):
                raise DataError(
                    f"batch {count}: expected a tensor of inputs, got {type(batch).__name__}",
                    field=f"batch {count}",
                    value=type(batch).__name__,
                    expected="a tensor of inputs",
                )
            model(batch)
            count += 1
    if not count:
        expected = "at least one batch of inputs"
        raise DataError(
            f"batches: expected {expected}, got none", field="batches", value=count, expected=expected
        )


def _check_finite(layers: list[_BatchNorm]) -> None:
    for layer in layers:
        for name, buffer in layer.named_buffers(recurse=False):
            if not bool(torch.isfinite(buffer).all()):
                message = f"batches: {name} is not finite after them, expected finite inputs"
                raise DataError(message, field="batches", value=name, expected="finite inputs")
