"""What every way in looks at first: a model, and plain tensors on its device."""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from refiner.errors import DataError


def check_types(model: nn.Module, field: str, x: Tensor) -> None:
    """Refuse what is no model, or no batch.

    >>> check_types(nn.Linear(2, 1), "x", torch.zeros(3))
    Traceback (most recent call last):
    refiner.errors.DataError: x = torch.float32 [3]: expected a dense batch [B, *input] of floating-point ...
    """
    if not isinstance(model, nn.Module):
        raise DataError(f"model = {type(model).__name__}: expected a torch.nn.Module")
    if not dense(x) or not x.is_floating_point() or x.ndim < 2 or not len(x):
        wanted = "a dense batch [B, *input] of floating-point inputs, B ≥ 1"
        raise DataError(f"{field} = {kind(x)}: expected {wanted}")


def check_devices(model: nn.Module, field: str, x: Tensor) -> None:
    """Refuse a model without values, or a batch on another device; walks through all of the model.

    >>> check_devices(nn.Linear(2, 1), "x", torch.zeros(3, 2, device="meta"))
    Traceback (most recent call last):
    refiner.errors.DataError: x on meta: expected the model's device, cpu
    """
    devices: list[torch.device] = []
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise DataError(f"model: {name} has no shape yet; run the model once before")
        if value.is_meta:
            raise DataError(f"model: {name} on meta: expected a device that holds values")
        devices.append(value.device)
    # A model may lie on several devices, and knows itself which comes first.
    if devices and x.device not in devices:
        raise DataError(f"{field} on {x.device}: expected the model's device, {devices[0]}")


def check_recording(*tensors: Tensor) -> None:
    """Refuse inference mode and tensors made in it: some versions of PyTorch give zeros for slopes there.

    And autocast, which would round what leaves to half precision behind the caller's back.

    >>> with torch.inference_mode():
    ...     x = torch.zeros(2)
    >>> check_recording(x)
    Traceback (most recent call last):
    refiner.errors.DataError: inference mode: no slopes are recorded in it; leave it, and clone what it made
    """
    if torch.is_inference_mode_enabled() or any(t.is_inference() for t in tensors):
        raise DataError("inference mode: no slopes are recorded in it; leave it, and clone what it made")
    for device in {t.device.type for t in tensors}:
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            raise DataError(f"autocast is on for {device}: leave it; refiner chooses its own precision")


def dense(value: object) -> TypeGuard[Tensor]:
    """Whether it is a plain tensor: not a sparse, a packed or a nested one.

    >>> dense(torch.zeros(2)), dense(torch.zeros(2).to_sparse()), dense([0, 0])
    (True, False, False)
    """
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested


def kind(value: object) -> str:
    """What a value is, in few words and without its numbers, for a message.

    >>> kind(torch.zeros(2, 3)), kind([0.5])
    ('torch.float32 [2, 3]', 'list')
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return f"nested {value.dtype}"
    layout = "" if dense(value) else f"{value.layout} "
    return f"{layout}{value.dtype} {list(value.shape)}"
