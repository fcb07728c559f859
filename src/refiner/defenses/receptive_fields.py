"""∂r/∂x of a plain chain of convolutions, such as LeNet, stored per receptive field.

A pixel of a feature map depends on a window of the image, its receptive field, so ∂r/∂x is stored as windows
and built layer by layer from the image on. That needs less arithmetic than one vjp per feature, and consists
of matrix products. Exact Soteria on LeNet on one CPU core, with windows and with vjps: 0.6 against 2.6 s for
four single images, 2.8 against 8.4 s for a batch of 16, 10 against 17 s for four batches of 16. On an H200:
18 against 31 ms for a batch of 128, but 16 against 8 ms for four single images.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from refiner.core.convolution import BilinearConv2d
from refiner.core.module_inputs import module_input
from refiner.core.task import Task

# Memory for rows of the Jacobian on a CPU, in bytes; on a GPU it is an eighth of the device's memory.
_CPU_BYTES = 1 << 30
_ELEMENTWISE = (nn.GELU, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """A type that is wide enough for sums of squares of values of `dtype`."""
    return torch.promote_types(dtype, torch.float32)


def jacobian_memory(device: torch.device) -> int:
    """How many bytes of Jacobian rows may be in memory at a time."""
    if device.type != "cuda":
        return _CPU_BYTES
    # Not the free memory: it varies, and another chunk size rounds differently.
    return int(torch.cuda.get_device_properties(device).total_memory) // 8


class ConvLink(NamedTuple):
    """A convolution and the derivative `[C, H, W, N]` of the activation after it, for N samples."""

    weight: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    derivative: Tensor


def conv_chain(task: Task, x: Tensor, layer: str) -> list[ConvLink] | None:
    """The model up to `layer` as convolutions for `x [N, C, H, W]`; None if it contains anything else."""
    if torch.is_inference_mode_enabled() or x.is_inference():  # these tensors have no version counter
        return None
    calls, r = _recorded_calls(task, x, layer)
    links: list[ConvLink] = []
    current, version = x, _version(x)
    for module, args, output, weight, versions in calls:
        # No operation may lie between two modules, and none may change a tensor in place.
        if not (len(args) == 1 and isinstance(value := args[0], Tensor) and isinstance(output, Tensor)):
            return None
        if not _same_memory(value, current) or versions[0] != version:
            return None
        if value is r:
            break
        if module._forward_pre_hooks or module._forward_hooks:
            return None
        if isinstance(module, BilinearConv2d) and weight is not None and value.shape == current.shape:
            derivative = torch.ones_like(output, dtype=sum_dtype(x.dtype))
            padding = cast(tuple[int, ...], module.padding)
            links.append(
                ConvLink(weight.to(derivative.dtype), module.stride, padding, module.dilation, derivative)
            )
        elif type(module) in _ELEMENTWISE and links and not getattr(module, "inplace", False):
            derivative = links[-1].derivative
            derivative.mul_(_elementwise_derivative(module, value).view_as(derivative))
        elif not _same_memory(output, value):
            return None
        current, version = output, versions[-1]
    else:
        return None
    # Windows larger than the image would be more work than whole rows of the Jacobian.
    if not links or math.prod(_window_size(links)) > x.shape[2] * x.shape[3]:
        return None
    return [link._replace(derivative=link.derivative.permute(1, 2, 3, 0)) for link in links]


_Call = tuple[nn.Module, tuple[object, ...], object, Tensor | None, list[int]]


def _recorded_calls(task: Task, x: Tensor, layer: str) -> tuple[list[_Call], Tensor]:
    """One forward pass: each module with its arguments, output, weight and versions; and the features."""
    calls: list[_Call] = []

    def record(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        # The weight is read during the pass: afterwards the module has none.
        weight = module.weight if isinstance(module, BilinearConv2d) else None
        calls.append((module, args, output, weight, [_version(t) for t in (*args, output)]))

    handles = [module.register_forward_hook(record) for module in task.modules()]
    try:
        with torch.no_grad():
            return calls, module_input(task, task.parameters(), x, layer)
    finally:
        for handle in handles:
            handle.remove()


def _version(value: object) -> int:
    """How often a tensor was changed in place."""
    return value._version if isinstance(value, Tensor) else 0


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same values in memory, up to the shape."""
    contiguous = a.is_contiguous() and b.is_contiguous()
    return contiguous and a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and len(a) == len(b)


def _elementwise_derivative(module: nn.Module, value: Tensor) -> Tensor:
    with torch.enable_grad():
        point = value.detach().requires_grad_()
        return torch.autograd.grad(module.forward(point).sum(), point)[0]


def _window_size(links: Sequence[ConvLink]) -> tuple[int, int]:
    """Height and width of the receptive field of a feature."""
    size, spacing = [1, 1], [1, 1]
    for link in links:
        for axis in (0, 1):
            size[axis] += (link.weight.shape[2 + axis] - 1) * link.dilation[axis] * spacing[axis]
            spacing[axis] *= link.stride[axis]
    return size[0], size[1]


def norms_by_receptive_field(links: Sequence[ConvLink], x: Tensor, chunk: int | None) -> Tensor:
    """The norms `[N, F]` of ∂r_i/∂x for a chain of convolutions, a chunk of samples at a time."""
    channels, last = x.shape[2], links[-1].derivative
    # The last windows, those before them, and the products that are added to them.
    sample_bytes = 4 * last[..., 0].numel() * math.prod(_window_size(links)) * channels * last.element_size()
    samples = jacobian_memory(x.device) // sample_bytes if chunk is None else chunk // last[..., 0].numel()
    identity = torch.eye(channels, dtype=last.dtype, device=x.device)
    identity = identity.view(channels, 1, 1, 1, 1, channels, 1)
    norms = []
    for part in torch.split(torch.arange(last.shape[-1], device=x.device), max(1, samples)):
        windows, spacing = identity.expand(-1, *x.shape[3:], -1, -1, -1, -1), (1, 1)
        for link in links[:-1]:
            windows, spacing = _through_convolution(windows, link, spacing)
            windows = windows * link.derivative[:, :, :, None, None, None, part]
        windows, _ = _through_convolution(windows, links[-1], spacing)
        window_norms = torch.linalg.vector_norm(windows, dim=(3, 4, 5)) * last[..., part].abs()
        norms.append(window_norms.flatten(0, 2).T)
    return torch.cat(norms)


def _through_convolution(
    windows: Tensor, link: ConvLink, spacing: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """The windows `[C, H, W, h, w, channels, N]` of ∂(pixel of a map)/∂x after one more convolution.

    `spacing` is the distance in the image between the windows of neighbouring pixels.
    """
    (out, _, *kernel), (_, *size, high, wide) = link.weight.shape, windows.shape[:5]
    steps = [(link.stride[i], link.padding[i], link.dilation[i], size[i]) for i in (0, 1)]
    count = [
        (n + 2 * padding - dilation * (kernel[i] - 1) - 1) // stride + 1
        for i, (stride, padding, dilation, n) in enumerate(steps)
    ]
    shift = [spacing[i] * link.dilation[i] for i in (0, 1)]
    grown = windows.new_zeros(
        out, *count, high + shift[0] * (kernel[0] - 1), wide + shift[1] * (kernel[1] - 1), *windows.shape[5:]
    )
    for i, j in product(range(kernel[0]), range(kernel[1])):
        (rows, input_rows), (columns, input_columns) = (
            _tap_slices(tap, *step, n) for tap, step, n in zip((i, j), steps, count, strict=True)
        )
        inputs = windows[:, input_rows, input_columns]
        added = (link.weight[:, :, i, j] @ inputs.flatten(1)).view(out, *inputs.shape[1:])
        top, left = i * shift[0], j * shift[1]
        grown[:, rows, columns, top : top + high, left : left + wide] += added
    return grown, (spacing[0] * link.stride[0], spacing[1] * link.stride[1])


def _tap_slices(
    tap: int, stride: int, padding: int, dilation: int, size: int, count: int
) -> tuple[slice, slice]:
    """The outputs for which a tap of the kernel lies within the input, and the inputs it reads there."""
    offset = tap * dilation - padding
    first = max(0, -(offset // stride))
    end = max(first, min(count, (size - 1 - offset) // stride + 1))
    if first == end:
        return slice(0, 0), slice(0, 0)
    return slice(first, end), slice(first * stride + offset, (end - 1) * stride + offset + 1, stride)
