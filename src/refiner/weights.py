"""Loads the fixed networks that refiner uses and never trains further, from safetensors."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from refiner.errors import DataError

Network = TypeVar("Network", bound=nn.Module)


def load_frozen(
    path: Path, make: Callable[[dict[str, Tensor]], Network], what: str, *, field: str = "weights"
) -> Network:
    """A network with the weights of a file, in float32 and evaluation mode, without gradients.

    Args:
        path: A safetensors file.
        make: Builds a network that fits the weights.
        what: What the network is, for the error message, such as "a generator".
        field: The setting that names the file, for the error message.

    Returns:
        The network, on the CPU.

    Raises:
        DataError: The file is missing or damaged, its weights don't fit or are not finite.

    >>> load_frozen(Path("nowhere"), lambda weights: nn.Linear(1, 1), "a line")
    Traceback (most recent call last):
    refiner.errors.DataError: weights = 'nowhere': not a line (No such file or directory: nowhere)
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        not_finite = [name for name, t in weights.items() if not bool(t.isfinite().all())]
        if not_finite:
            raise ValueError(f"{not_finite[0]} holds NaN or infinity")
        network = make(weights)
        network.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        problem = f"not {what} ({reason})"
        raise DataError(field=field, value=str(path), expected=what, problem=problem) from error
    network.requires_grad_(False)
    return network.eval()


def resolve_device(device: torch.device | str) -> torch.device:
    """The device as a `torch.device`, checked to be usable on this machine.

    Args:
        device: A device or its name.

    Returns:
        The device.

    Raises:
        DataError: There is no such device here.

    >>> resolve_device("nowhere")
    Traceback (most recent call last):
    refiner.errors.DataError: device = 'nowhere': not available here (Expected one of cpu, cuda, ...)
    """
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    # A PyTorch that was built without CUDA raises an AssertionError.
    except (RuntimeError, AssertionError, TypeError) as error:
        name = str(device) if isinstance(device, torch.device) else device
        reason = " ".join(str(error).split())[:100]
        problem = f"not available here ({reason})"
        raise DataError(
            field="device", value=name, expected="an available device", problem=problem
        ) from error
    return resolved
