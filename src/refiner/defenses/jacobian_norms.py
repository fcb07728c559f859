"""Norms of ∂r_i/∂x for every feature r_i of a sample: how strongly each feature depends on the input.

One backward pass per feature in a Python loop is what makes Soteria slow. Here one pass handles many
features. The features of a sample depend only on its own pixels, so a cotangent with a one at (b, i) for
every b gives the rows of all samples at once. Batch norm mixes the samples of a victim; there the pass gives
∂(Σ_b r_bi)/∂x, as the loop of Soteria's authors does. A plain chain of convolutions has a faster method
(`receptive_fields.py`).
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.core.module_inputs import mixes_samples, module_input
from refiner.core.noise import NoiseSource
from refiner.core.task import Parameters, Task
from refiner.defenses.receptive_fields import (
    conv_chain,
    jacobian_memory,
    norms_by_receptive_field,
    sum_dtype,
)

# Bits of a uniform float32 draw; each gives one random sign.
_RANDOM_BITS = 24
# Memory of one row of the Jacobian during a backward pass, in multiples of the input's bytes.
_ROW_COPIES = 64


def layer_input(task: Task, x: Tensor, layer: str) -> Tensor:
    """The features that `layer` receives, `[V, B, F]`, for `x [V, B, *input]`.

    >>> from refiner.models import LeNet
    >>> x = torch.rand(3, 2, 3, 32, 32)
    >>> layer_input(Task(LeNet(), example=x[0]), x, "head").shape
    torch.Size([3, 2, 768])
    """

    def compute(parameters: Parameters, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = [_features(task, layer, parameters)(images) for images in _groups(task, x)]
        return torch.cat(features).view(*x.shape[:2], -1)

    return task.graphed_call(("features", layer), compute, x)


def rows_at_a_time(x: Tensor) -> int:
    """How many rows of the Jacobian of `x [V, B, *input]` fit the device; the same in every call.

    >>> rows_at_a_time(torch.rand(1, 8, 3, 32, 32))
    1365
    """
    return max(1, jacobian_memory(x.device) // (_ROW_COPIES * x[0, 0].numel() * x.element_size()))


def exact_norms(task: Task, x: Tensor, layer: str, *, chunk: int | None = None) -> Tensor:
    """‖∂r_bi/∂x_b‖ for every feature that `layer` receives, `[V, B, F]`.

    `chunk` rows of the Jacobian are computed at a time; None chooses as many as fit.

    >>> from torch import nn
    >>> task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), example=torch.rand(2, 2, 2))
    >>> exact_norms(task, torch.rand(1, 2, 2, 2), "1").tolist()  # these features are the pixels
    [[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]]
    """
    images = x.flatten(0, 1)
    # Two samples suffice to recognise most models without the activations of all; batch norm needs two.
    convolutions = conv_chain(task, images[:2], layer) and conv_chain(task, images, layer)
    if convolutions:
        return norms_by_receptive_field(convolutions, x, chunk).view(*x.shape[:2], -1)
    chunk = chunk or rows_at_a_time(x)
    norms = []
    for images in _groups(task, x):
        r, vjp = torch.func.vjp(_features(task, layer, task.parameters()), images)[:2]
        rows = []
        for numbers in torch.split(torch.arange(r.shape[1], device=x.device), max(1, chunk // len(r))):
            cotangents = F.one_hot(numbers, r.shape[1]).to(r.dtype)
            (jacobian_rows,) = torch.func.vmap(vjp)(cotangents[:, None].expand(-1, len(r), -1))
            rows.append(torch.linalg.vector_norm(jacobian_rows.flatten(2), dim=2, dtype=sum_dtype(r.dtype)))
        norms.append(torch.cat(rows).T)
    return torch.cat(norms).view(*x.shape[:2], -1)


def estimated_norms(
    task: Task, x: Tensor, layer: str, *, probes: int, noise: NoiseSource, chunk: int | None = None
) -> Tensor:
    """The same norms estimated from random directions u of ±1: E (∂r_i/∂x · u)² = ‖∂r_i/∂x‖²; `[V, B, F]`.

    The relative standard deviation of a squared norm is at most √(2 / probes). All samples share their
    directions, so that a sample's norms are the same in every batch. Where batch norm mixes samples, each
    position in the batch has its own directions, and the norm is that of ∂r_bi over the whole batch's pixels.

    >>> from torch import nn
    >>> task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), example=torch.rand(2, 2, 2))
    >>> estimated_norms(task, torch.rand(1, 1, 2, 2), "1", probes=1, noise=NoiseSource(seed=0)).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    rows = chunk or rows_at_a_time(x)

    def compute(parameters: Parameters, x: Tensor, signs: Tensor) -> Tensor:
        features, totals = _features(task, layer, parameters), []
        for images in _groups(task, x):

            def squared_jvp(u: Tensor, images: Tensor = images) -> Tensor:
                tangent: Tensor = torch.func.jvp(features, (images,), (u.expand_as(images),))[1]
                return tangent.to(sum_dtype(tangent.dtype)).square()

            with torch.no_grad():
                groups = torch.split(signs, max(1, rows // len(images)))
                squares = [torch.func.vmap(squared_jvp)(group).sum(0) for group in groups]
            totals.append(torch.stack(squares).sum(0))
        return (torch.cat(totals) / probes).sqrt().view(*x.shape[:2], -1)

    like = x[0] if mixes_samples(task) else x[0, :1]
    return task.graphed_call(("estimated", layer, rows), compute, x, _random_signs(noise, probes, like))


def _features(task: Task, layer: str, parameters: Parameters) -> Callable[[Tensor], Tensor]:
    return lambda x: module_input(task, parameters, x, layer).flatten(1)


def _groups(task: Task, x: Tensor) -> Sequence[Tensor]:
    """The samples of all victims as one batch, or one batch per victim if batch norm would mix victims."""
    return x.unbind() if mixes_samples(task) else (x.flatten(0, 1),)


def _random_signs(noise: NoiseSource, probes: int, like: Tensor) -> Tensor:
    """±1 of shape `[probes, *like.shape]`, one random stream per row of `like`."""
    shape = like.shape[1:]
    count = probes * math.prod(shape)
    ids = torch.arange(len(like), device=like.device)
    words = (noise.uniform(ids, (-(-count // _RANDOM_BITS),)) * 2**_RANDOM_BITS).to(torch.int32)
    shifts = torch.arange(_RANDOM_BITS, device=like.device, dtype=torch.int32)
    bits = (words[..., None] >> shifts) & 1
    drawn = bits.flatten(1)[:, :count].view(len(ids), probes, *shape).transpose(0, 1)
    signs: Tensor = (2 * drawn - 1).to(like.dtype)
    return signs
