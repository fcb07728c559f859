"""The weights of a model, read from a safetensors file or from a `state_dict` of PyTorch."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from refiner.core.input_checks import describe_tensor, is_dense
from refiner.errors import DataError

TORCH_SUFFIXES = (".pt", ".pth")
_CONTAINERS = ("state_dict", "model", "model_state_dict")
_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and DataParallel, and of torch.compile


def load_model_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into `model`; names and shapes must match exactly.

    A `.pt` or `.pth` file is read with `torch.load(weights_only=True)`, which runs no code of the file. It
    contains a `state_dict`, or a dictionary with one as `state_dict`, `model` or `model_state_dict`. Prefixes
    that DistributedDataParallel, DataParallel or torch.compile have put before every name are removed. Both
    give a warning.

    Args:
        model: The model, changed in place.
        path: A safetensors file, or a `.pt` or `.pth` file.

    Raises:
        DataError: The file is missing or damaged, or its tensors are not those of the model, which is then
            unchanged.

    >>> load_model_weights(nn.Linear(1, 1), Path("absent.safetensors"))
    Traceback (most recent call last):
    refiner.errors.DataError: weights = 'absent.safetensors': no such file
    """
    if not path.is_file():
        raise _error(path, "no such file")
    weights = _read_torch(path) if path.suffix.lower() in TORCH_SUFFIXES else _read_safetensors(path)
    expected = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    weights = _without_prefixes(weights, expected, path)
    architecture = type(model).__name__
    for key, parameter in expected.items():
        if key not in weights:
            raise _error(path, f"has no tensor {key}, which {architecture} needs")
        tensor = weights[key]
        same_kind = tensor.is_floating_point() == parameter.is_floating_point()
        if not is_dense(tensor) or tensor.shape != parameter.shape or not same_kind:
            raise _error(
                path,
                f"{key} is {describe_tensor(tensor)}, "
                f"expected {parameter.dtype} {list(parameter.shape)} for {architecture}",
            )
    extra = next((key for key in weights if key not in expected), None)
    if extra is not None:
        raise _error(path, f"has a tensor {extra}, which {architecture} does not have")
    model.load_state_dict(weights, strict=False)  # all are there; extra state is not loaded


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        others = " or ".join(TORCH_SUFFIXES)
        raise _error(
            path, f"not a safetensors file ({_reason(error)}); a state_dict of PyTorch ends in {others}"
        ) from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error).lower().replace(" ", "_"):
            raise _error(
                path,
                "is damaged, or contains Python objects, which are not loaded since they could run code; "
                "save the state_dict: torch.save(model.state_dict(), FILE)",
            ) from error
        raise _error(path, f"not a file of torch.save ({_reason(error)})") from error
    except Exception as error:  # a damaged file may raise anything
        raise _error(path, f"not a file of torch.save ({_reason(error)})") from error
    if isinstance(content, Mapping):
        for key in _CONTAINERS:
            if isinstance(content.get(key), Mapping):
                warnings.warn(f"{path}: the weights are its entry {key!r}", stacklevel=3)
                content = content[key]
                break
    if not isinstance(content, Mapping) or not content:
        raise _error(path, f"contains {_kind(content)}, expected a state_dict")
    weights: dict[str, Tensor] = {}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise _error(
                path, f"its entry {str(key)!r:.80} is {_kind(value)}, expected a state_dict of tensors"
            )
        weights[key] = value
    return weights


def _without_prefixes(
    weights: dict[str, Tensor], expected: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    """The weights without the prefixes of wrappers that every name has and that the model's names lack."""
    removed = ""
    while weights:
        prefix = next((p for p in _PREFIXES if all(key.startswith(p) for key in weights)), None)
        if prefix is None or any(key.startswith(prefix) for key in expected):
            break
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
        removed += prefix
    if removed:
        warnings.warn(f"{path}: the prefix {removed!r} of a wrapper is removed from all names", stacklevel=3)
    return weights


def _kind(value: object) -> str:
    empty = "an empty " if isinstance(value, Mapping) and not value else ""
    return f"{empty}{type(value).__name__}"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _error(path: Path, problem: str) -> DataError:
    return DataError(field="weights", value=str(path), problem=problem)
