"""Networks from safetensors, fixed: for what comes with refiner and is never trained further."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from refiner.errors import DataError

Network = TypeVar("Network", bound=nn.Module)


def frozen(path: Path, make: Callable[[dict[str, Tensor]], Network], what: str) -> Network:
    """The network that `make` builds to fit the weights of a file, with them, in float32 and evaluation mode.

    >>> frozen(Path("nowhere"), lambda weights: nn.Linear(1, 1), "a line")
    Traceback (most recent call last):
    refiner.errors.DataError: weights = 'nowhere': not a line (No such file or directory: nowhere)
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        broken = [name for name, t in weights.items() if not bool(t.isfinite().all())]
        if broken:
            raise ValueError(f"{broken[0]} holds NaN or infinity")
        network = make(weights)
        network.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"weights = {str(path)!r}: not {what} ({reason})") from error
    network.requires_grad_(False)
    return network.eval()


def available(device: torch.device | str) -> torch.device:
    """The device, if it is here.

    >>> available("nowhere")
    Traceback (most recent call last):
    refiner.errors.DataError: device = 'nowhere': not available here (Expected one of cpu, cuda, ...)
    """
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    # Without CUDA in its build, PyTorch asserts.
    except (RuntimeError, AssertionError, TypeError) as error:
        shown = str(device) if isinstance(device, torch.device) else device
        reason = " ".join(str(error).split())[:100]
        raise DataError(f"device = {shown!r}: not available here ({reason})") from error
    return found
