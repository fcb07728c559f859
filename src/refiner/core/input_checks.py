"""Checks of models and tensors that every entry point makes first."""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from refiner.errors import DataError, Description


def check_types(model: nn.Module, field: str, x: Tensor) -> None:
    """Raise a DataError unless `model` is a module and `x` a batch of inputs.

    >>> check_types(nn.Linear(2, 1), "x", torch.zeros(3))
    Traceback (most recent call last):
    refiner.errors.DataError: x = torch.float32 [3]: expected a dense batch [B, *input] of floating-point ...
    """
    if not isinstance(model, nn.Module):
        raise input_error("model", model, "a torch.nn.Module")
    if not is_dense(x) or not x.is_floating_point() or x.ndim < 2 or not len(x):
        raise input_error(field, x, "a dense batch [B, *input] of floating-point inputs, B ≥ 1")


def check_devices(model: nn.Module, field: str, x: Tensor) -> None:
    """Raise a DataError for a model without values, or a batch on another device; visits the whole model.

    >>> check_devices(nn.Linear(2, 1), "x", torch.zeros(3, 2, device="meta"))
    Traceback (most recent call last):
    refiner.errors.DataError: x on meta: expected the model's device, cpu
    """
    devices: list[torch.device] = []
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise DataError(
                f"model: {name} has no shape yet; run the model once before",
                field="model",
                value=name,
                expected="initialised parameters",
            )
        if value.is_meta:
            expected = "a device that holds values"
            raise DataError(
                f"model: {name} on meta: expected {expected}", field="model", value=name, expected=expected
            )
        devices.append(value.device)
    # A model may be spread over several devices; it places its own inputs.
    if devices and x.device not in devices:
        expected = f"the model's device, {devices[0]}"
        raise DataError(
            f"{field} on {x.device}: expected {expected}", field=field, value=str(x.device), expected=expected
        )


def check_recording(*tensors: Tensor) -> None:
    """Raise a DataError in inference mode, for tensors made in it, and under autocast.

    In inference mode some versions of PyTorch return zeros as gradients; autocast would round an upload to
    half precision without the caller's knowledge.

    >>> with torch.inference_mode():
    ...     x = torch.zeros(2)
    >>> check_recording(x)
    Traceback (most recent call last):
    refiner.errors.DataError: inference mode: no gradients are recorded in it; leave it, and clone its tensors
    """
    if torch.is_inference_mode_enabled() or any(t.is_inference() for t in tensors):
        raise DataError(
            "inference mode: no gradients are recorded in it; leave it, and clone its tensors",
            field="inference mode",
            value=True,
            expected="no inference mode",
        )
    for device in {t.device.type for t in tensors}:
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            raise DataError(
                f"torch.autocast is on for {device}: refiner does not work under it, since it would round "
                "gradients to half precision; call refiner outside of the autocast block",
                field="autocast",
                value=device,
                expected="no autocast",
            )


def is_dense(value: object) -> TypeGuard[Tensor]:
    """Whether `value` is a plain tensor: not sparse, packed or nested.

    >>> is_dense(torch.zeros(2)), is_dense(torch.zeros(2).to_sparse()), is_dense([0, 0])
    (True, False, False)
    """
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested


def describe_tensor(value: object) -> str:
    """The type of a value, and of a tensor its dtype and shape, without its data: for a message.

    >>> describe_tensor(torch.zeros(2, 3)), describe_tensor([0.5])
    ('torch.float32 [2, 3]', 'list')
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return f"nested {value.dtype}"
    layout = "" if is_dense(value) else f"{value.layout} "
    return f"{layout}{value.dtype} {list(value.shape)}"


def input_error(field: str, value: object, expected: str) -> DataError:
    """The error for a wrong input, which shows its type and shape instead of its data.

    >>> print(input_error("x", torch.zeros(3), "a batch"))
    x = torch.float32 [3]: expected a batch
    """
    return DataError(field=field, value=Description(describe_tensor(value)), expected=expected)
