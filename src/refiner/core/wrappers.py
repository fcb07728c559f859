"""Wrappers around models, and outputs around scores: what is inside of them."""

import warnings

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module inside of DistributedDataParallel, DataParallel and torch.compile, with a warning.

    Its parameters have the names that the user gave them, without `module.` or `_orig_mod.`.

    >>> unwrap_model(nn.ReLU())
    ReLU()
    """
    inner, wrappers = model, []
    while True:
        if isinstance(inner, DistributedDataParallel | DataParallel):
            wrapper, inside = type(inner).__name__, inner.module
        # By name: an import of torch.compile's machinery takes a second.
        elif type(inner).__name__ == "OptimizedModule" and isinstance(
            getattr(inner, "_orig_mod", None), nn.Module
        ):
            wrapper, inside = "torch.compile", inner._orig_mod
        else:
            break
        assert isinstance(inside, nn.Module)
        wrappers.append(wrapper)
        inner = inside
    if wrappers:
        averaged = "; gradients are not averaged between processes"
        warnings.warn(
            f"model: refiner uses the module inside of {' and '.join(wrappers)}"
            f"{averaged if 'DistributedDataParallel' in wrappers else ''}",
            stacklevel=3,
        )
    return inner


def use_logits(_module: nn.Module, _args: object, output: object) -> Tensor | None:
    """A forward hook: the `logits` of an output that is no tensor but has them, as Hugging Face's models do.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> use_logits(nn.ReLU(), (), SimpleNamespace(logits=torch.zeros(1), loss=None))
    tensor([0.])
    """
    logits = None if isinstance(output, Tensor) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else None
