"""The weights of the model under audit, from a file."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from refiner.errors import DataError


def load_weights(model: nn.Module, path: Path) -> None:
    """Give `model` the weights of a safetensors file; they must have the names and shapes of its own.

    >>> load_weights(nn.Linear(1, 1), Path("absent.safetensors"))
    Traceback (most recent call last):
    refiner.errors.DataError: weights = 'absent.safetensors': no such file
    """
    name = f"weights = {str(path)!r}"
    if not path.is_file():
        raise DataError(f"{name}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{name}: not a safetensors file ({reason})") from error
    kind, own = type(model).__name__, model.state_dict()
    for key, value in own.items():
        if key not in weights:
            raise DataError(f"{name}: lacks {key} of {kind}")
        found = weights[key]
        if found.shape != value.shape or found.is_floating_point() != value.is_floating_point():
            raise DataError(
                f"{name}: {key} is {found.dtype} {list(found.shape)}, "
                f"expected {value.dtype} {list(value.shape)} as {kind} has it"
            )
    extra = next((key for key in weights if key not in own), None)
    if extra is not None:
        raise DataError(f"{name}: has {extra}, which {kind} has not")
    model.load_state_dict(weights)
