"""The parts of a model: its structure without values, its tensors by name, each module's parameters."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from refiner.core import convolution, normalization
from refiner.core.model_failures import summarise_error
from refiner.core.wrappers import use_logits
from refiner.errors import UnsupportedModelError


def copy_structure(model: nn.Module) -> nn.Module:
    """A copy of the model without its values: in evaluation mode, without running statistics.

    Of an output that is no tensor it returns the `logits`. Its normalisation layers and convolutions are
    those of `core.normalization` and `core.convolution`.

    Raises:
        UnsupportedModelError: The model can't be copied.

    >>> copy_structure(nn.Linear(2, 1)).weight.device
    device(type='meta')
    """
    # Shapes in place of values, one for each tensor: `.to("meta")` would untie tied weights.
    shapes: dict[int, object] = {id(b): b.detach().to("meta") for b in model.buffers()}
    shapes |= {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad) for p in model.parameters()
    }
    structure = _copy_model(model, shapes).eval()
    normalization.replace_norms(structure)
    convolution.replace_convolutions(structure)
    structure.register_forward_hook(use_logits)
    return structure


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters and buffers by name, detached; a tied tensor has one name.

    Equal to what `named_parameters` and `named_buffers` give, which each walk through all modules, slowly.

    >>> list(named_tensors(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()

    def visit(module: nn.Module, prefix: str) -> None:
        for key, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                tensors[prefix + key] = value.detach()
        for key, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{key}.")

    visit(model, "")
    return tensors


def direct_parameters(model: nn.Module, module: str) -> list[str]:
    """The full names of the parameters that the named module owns directly.

    >>> direct_parameters(nn.Sequential(nn.Linear(2, 1)), "0")
    ['0.weight', '0.bias']
    """
    prefix = f"{module}." if module else ""
    return [prefix + p for p, _ in model.get_submodule(module).named_parameters(recurse=False)]


def _copy_model(model: nn.Module, replacements: Mapping[int, object]) -> nn.Module:
    """A copy of the model, in which an object whose id is in `replacements` is replaced."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            remedy = "give the plain module that it was made from"
            raise _copy_error(name, module, "it is compiled by torch.jit", remedy)
    try:
        return copy.deepcopy(model, dict(replacements))
    except Exception as error:
        # Only after a failure: examining every attribute takes as long as the copy.
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
                    raise _copy_error(name, module, reason, remedy) from error
                try:
                    copy.deepcopy(value, dict(replacements))
                except Exception as inner:
                    reason = f"its {key!r}: {summarise_error(inner)}"
                    raise _copy_error(name, module, reason, "keep it outside of the model") from error
        reason = summarise_error(error)
        raise _copy_error("", model, reason, "build it of modules that can be copied") from error


def _copy_error(name: str, module: nn.Module, reason: str, remedy: str) -> UnsupportedModelError:
    title = f"{name or 'the model'} ({type(module).__name__})"
    return UnsupportedModelError(
        f"{title}: the model can't be copied ({reason}); {remedy}",
        field="model",
        value=module,
        expected="a model that can be copied",
    )
