"""Batch-norm running statistics from chosen data, so that a client's own batch need not set them."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from refiner import checks
from refiner.errors import DataError, UnsupportedModelError


def recalibrate(model: nn.Module, batches: Iterable[Tensor], momentum: float | None = None) -> None:
    """Recompute the batch-norm running statistics of `model` over `batches` of inputs; nothing else changes.

    They become cumulative averages, each batch with the same weight, or exponential ones with a `momentum`.
    If a batch fails, the old statistics come back.

    >>> from refiner.models import resnet10
    >>> model = resnet10(norm="batch", input_shape=(3, 8, 8))
    >>> recalibrate(model, [torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8)])
    >>> int(model.stem[1].num_batches_tracked)
    2
    """
    if momentum is not None:
        checks.number("momentum", momentum, 0, 1, above=True)
    if not isinstance(model, nn.Module):
        raise DataError(f"model = {type(model).__name__}: expected a torch.nn.Module")
    if not isinstance(batches, Iterable):
        raise DataError(f"batches = {type(batches).__name__}: expected tensors of inputs, as a list")
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers:
        raise UnsupportedModelError(
            f"{type(model).__name__}: expected a batch-norm layer with running statistics, found none"
        )
    flags = [(module, module.training) for module in model.modules()]
    before = [(layer, layer.momentum, _statistics(layer)) for layer in layers]
    done = False
    try:
        # Only batch norm trains here: dropout and the like must not colour the statistics.
        model.eval()
        for layer in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = momentum
        _run(model, batches)
        _require_finite(layers)
        done = True
    finally:
        for module, training in flags:
            module.training = training
        for layer, old_momentum, statistics in before:
            layer.momentum = old_momentum
            if not done:
                layer.load_state_dict(statistics, strict=False)


def _statistics(layer: _BatchNorm) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in layer.named_buffers(recurse=False)}


def _run(model: nn.Module, batches: Iterable[Tensor]) -> None:
    count = 0
    with torch.no_grad():
        for batch in batches:
            if not isinstance(batch, Tensor):
                raise DataError(f"batch {count}: expected a tensor of inputs, got {type(batch).__name__}")
            model(batch)
            count += 1
    if not count:
        raise DataError("batches: expected at least one batch of inputs, got none")


def _require_finite(layers: list[_BatchNorm]) -> None:
    for layer in layers:
        for name, buffer in layer.named_buffers(recurse=False):
            if not bool(torch.isfinite(buffer).all()):
                raise DataError(f"batches: {name} is not finite after them, expected finite inputs")
