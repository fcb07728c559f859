"""∂r/∂x of a plain chain of convolutions, such as LeNet, as windows of the image.

A pixel of a feature map depends on a window of the image, so that ∂r/∂x is held as windows and grows layer by
layer from the image on. That is less arithmetic than one slope a feature, and in matrix products, which
a CPU does several times as fast as slopes of convolutions.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from refiner.core.convolution import _WrittenConv2d
from refiner.core.task import Task

# What a CPU holds of rows at a time, in bytes; a GPU takes an eighth of its memory.
_BYTES = 1 << 30
_ELEMENTWISE = (nn.GELU, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus)


def wide(dtype: torch.dtype) -> torch.dtype:
    """A type with room for sums of squares."""
    return torch.promote_types(dtype, torch.float32)


def room(device: torch.device) -> int:
    """How many bytes of rows may be held at a time."""
    if device.type != "cuda":
        return _BYTES
    # Not what is free now: another chunk rounds otherwise, and an upload should come out the same again.
    return int(torch.cuda.get_device_properties(device).total_memory) // 8


class Link(NamedTuple):
    """A convolution and the slope `[C, H, W, N]` of the activation behind it, for N samples."""

    weight: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    slope: Tensor


def chain(task: Task, x: Tensor, layer: str) -> list[Link] | None:
    """The model up to `layer` as links, for `x [N, C, H, W]`; None where it is anything else."""
    if torch.is_inference_mode_enabled() or x.is_inference():  # such tensors don't count their changes
        return None
    calls, r = _recorded(task, x, layer)
    links: list[Link] = []
    now, version = x, _version(x)
    for module, args, gave, weight, versions in calls:
        # Nothing may lie between two modules: neither an operation, nor one in place.
        if not (len(args) == 1 and isinstance(given := args[0], Tensor) and isinstance(gave, Tensor)):
            return None
        if not _same(given, now) or versions[0] != version:
            return None
        if given is r:
            break
        if module._forward_pre_hooks or module._forward_hooks:
            return None
        if isinstance(module, _WrittenConv2d) and weight is not None and given.shape == now.shape:
            slope = torch.ones_like(gave, dtype=wide(x.dtype))
            padding = cast(tuple[int, ...], module.padding)
            links.append(Link(weight.to(slope.dtype), module.stride, padding, module.dilation, slope))
        elif type(module) in _ELEMENTWISE and links and not getattr(module, "inplace", False):
            links[-1].slope.mul_(_slope(module, given).view_as(links[-1].slope))
        elif not _same(gave, given):
            return None
        now, version = gave, versions[-1]
    else:
        return None
    # Windows beyond the image would be more work than whole rows.
    if not links or math.prod(_window(links)) > x.shape[2] * x.shape[3]:
        return None
    return [link._replace(slope=link.slope.permute(1, 2, 3, 0)) for link in links]


_Call = tuple[nn.Module, tuple[object, ...], object, Tensor | None, list[int]]


def _recorded(task: Task, x: Tensor, layer: str) -> tuple[list[_Call], Tensor]:
    """A pass: each module with what it got and gave, its weight and their versions; and the features."""
    calls: list[_Call] = []

    def note(module: nn.Module, args: tuple[object, ...], gave: object) -> None:
        # Within the pass, since the module holds no weight after it.
        weight = module.weight if isinstance(module, _WrittenConv2d) else None
        calls.append((module, args, gave, weight, [_version(t) for t in (*args, gave)]))

    handles = [module.register_forward_hook(note) for module in task.modules()]
    try:
        with torch.no_grad():
            return calls, task.features(task.parameters(), x, layer)
    finally:
        for handle in handles:
            handle.remove()


def _version(value: object) -> int:
    """How often it was changed in place."""
    return value._version if isinstance(value, Tensor) else 0


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether these are the same numbers in memory, but for the shape."""
    plain = a.is_contiguous() and b.is_contiguous()
    return plain and a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and len(a) == len(b)


def _slope(module: nn.Module, at: Tensor) -> Tensor:
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        return torch.autograd.grad(module.forward(point).sum(), point)[0]


def _window(links: Sequence[Link]) -> tuple[int, int]:
    """Height and width of what a feature sees."""
    size, reach = [1, 1], [1, 1]
    for link in links:
        for axis in (0, 1):
            size[axis] += (link.weight.shape[2 + axis] - 1) * link.dilation[axis] * reach[axis]
            reach[axis] *= link.stride[axis]
    return size[0], size[1]


def by_windows(links: Sequence[Link], x: Tensor, chunk: int | None) -> Tensor:
    """The norms `[N, F]` of a chain, some samples at a time."""
    colours, last = x.shape[2], links[-1].slope
    # The last windows, those before them, and what is added to them.
    held = 4 * last[..., 0].numel() * math.prod(_window(links)) * colours * last.element_size()
    samples = room(x.device) // held if chunk is None else chunk // last[..., 0].numel()
    one = torch.eye(colours, dtype=last.dtype, device=x.device).view(colours, 1, 1, 1, 1, colours, 1)
    found = []
    for part in torch.split(torch.arange(last.shape[-1], device=x.device), max(1, samples)):
        windows, reach = one.expand(-1, *x.shape[3:], -1, -1, -1, -1), (1, 1)
        for link in links[:-1]:
            windows, reach = _grown(windows, link, reach)
            windows = windows * link.slope[:, :, :, None, None, None, part]
        windows, _ = _grown(windows, links[-1], reach)
        norms = torch.linalg.vector_norm(windows, dim=(3, 4, 5)) * last[..., part].abs()
        found.append(norms.flatten(0, 2).T)
    return torch.cat(found)


def _grown(windows: Tensor, link: Link, reach: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """The windows `[C, H, W, h, w, colours, N]` of ∂(pixel of a map)/∂x behind one more convolution.

    `reach` is how far apart in the image the windows of neighbours lie.
    """
    (out, _, *kernel), (_, *size, high, wide) = link.weight.shape, windows.shape[:5]
    steps = [(link.stride[i], link.padding[i], link.dilation[i], size[i]) for i in (0, 1)]
    count = [
        (n + 2 * padding - dilation * (kernel[i] - 1) - 1) // stride + 1
        for i, (stride, padding, dilation, n) in enumerate(steps)
    ]
    shift = [reach[i] * link.dilation[i] for i in (0, 1)]
    grown = windows.new_zeros(
        out, *count, high + shift[0] * (kernel[0] - 1), wide + shift[1] * (kernel[1] - 1), *windows.shape[5:]
    )
    for i, j in product(range(kernel[0]), range(kernel[1])):
        (rows, above), (columns, beside) = (
            _met(tap, *step, n) for tap, step, n in zip((i, j), steps, count, strict=True)
        )
        seen = windows[:, above, beside]
        added = (link.weight[:, :, i, j] @ seen.flatten(1)).view(out, *seen.shape[1:])
        top, left = i * shift[0], j * shift[1]
        grown[:, rows, columns, top : top + high, left : left + wide] += added
    return grown, (reach[0] * link.stride[0], reach[1] * link.stride[1])


def _met(tap: int, stride: int, padding: int, dilation: int, size: int, count: int) -> tuple[slice, slice]:
    """The outputs for which a tap of the kernel lies within the map, and the inputs that it lies on."""
    offset = tap * dilation - padding
    first = max(0, -(offset // stride))
    end = max(first, min(count, (size - 1 - offset) // stride + 1))
    if first == end:
        return slice(0, 0), slice(0, 0)
    return slice(first, end), slice(first * stride + offset, (end - 1) * stride + offset + 1, stride)
