"""How strongly each feature of a sample answers to its pixels: the norms of ∂r_i/∂x, many at once.

One backward pass a feature in a Python loop is what makes Soteria slow. Here a pass takes many features; and
since a sample's features depend on its own pixels alone, a one at (b, i) for every b gives the rows of all
samples together. Where batch norm mixes the samples of a victim, that pass gives ∂(Σ_b r_bi)/∂x, as the loop
of Soteria's authors does.
A plain chain of convolutions takes a shorter way (`windows.py`).
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from refiner.core.noise import NoiseSource
from refiner.core.task import Parameters, Task
from refiner.defenses.windows import by_windows, chain, room, wide

# Bits that a uniform draw in float32 holds.
_BITS = 24
# How many times an image's bytes a row of the Jacobian takes on its way back, in wide layers and in copies.
_COPIES = 64


def features(task: Task, x: Tensor, layer: str) -> Tensor:
    """What `layer` is given, `[V, B, F]`, for `x [V, B, *input]`.

    >>> from refiner.models import LeNet
    >>> x = torch.rand(3, 2, 3, 32, 32)
    >>> features(Task(LeNet(), example=x[0]), x, "head").shape
    torch.Size([3, 2, 768])
    """

    def found(parameters: Parameters, x: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [_run(task, layer, parameters)(images) for images in _groups(task, x)]
        return torch.cat(parts).view(*x.shape[:2], -1)

    return task.replay(("features", layer), found, x)


def rows_at_a_time(x: Tensor) -> int:
    """How many rows of the Jacobian of `x [V, B, *input]` fit the device; the same on every call.

    >>> rows_at_a_time(torch.rand(1, 8, 3, 32, 32))
    1365
    """
    return max(1, room(x.device) // (_COPIES * x[0, 0].numel() * x.element_size()))


def exact(task: Task, x: Tensor, layer: str, *, chunk: int | None = None) -> Tensor:
    """‖∂r_bi/∂x_b‖ for every feature, `[V, B, F]`, `chunk` rows of the Jacobian at a time; None: as fit.

    >>> from torch import nn
    >>> task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), example=torch.rand(2, 2, 2))
    >>> exact(task, torch.rand(1, 2, 2, 2), "1").tolist()  # these features are the pixels
    [[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]]
    """
    found = []
    images = x.flatten(0, 1)
    # Few samples tell most models apart, without the activations of all; batch norm needs two.
    links = chain(task, images[:2], layer) and chain(task, images, layer)
    if links:
        return by_windows(links, x, chunk).view(*x.shape[:2], -1)
    chunk = chunk or rows_at_a_time(x)
    for images in _groups(task, x):
        r, back = torch.func.vjp(_run(task, layer, task.parameters()), images)[:2]
        rows = []
        for numbers in torch.split(torch.arange(r.shape[1], device=x.device), max(1, chunk // len(r))):
            one = F.one_hot(numbers, r.shape[1]).to(r.dtype)
            (slope,) = torch.func.vmap(back)(one[:, None].expand(-1, len(r), -1))
            rows.append(torch.linalg.vector_norm(slope.flatten(2), dim=2, dtype=wide(r.dtype)))
        found.append(torch.cat(rows).T)
    return torch.cat(found).view(*x.shape[:2], -1)


def estimated(
    task: Task, x: Tensor, layer: str, *, probes: int, noise: NoiseSource, chunk: int | None = None
) -> Tensor:
    """The same norms from random directions u of ±1: E (∂r_i/∂x · u)² = ‖∂r_i/∂x‖²; `[V, B, F]`.

    A feature's squared norm is off by a share of at most √(2 / probes) (standard deviation). All samples
    share their directions, so that a sample's norms are the same in every batch. Where batch norm mixes
    samples, each place in the batch has its own, and it is the norm of ∂r_bi over the whole batch's pixels.

    >>> from torch import nn
    >>> task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), example=torch.rand(2, 2, 2))
    >>> estimated(task, torch.rand(1, 1, 2, 2), "1", probes=1, noise=NoiseSource(seed=0)).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    rows = chunk or rows_at_a_time(x)

    def norms(parameters: Parameters, x: Tensor, signs: Tensor) -> Tensor:
        run, found = _run(task, layer, parameters), []
        for images in _groups(task, x):

            def along(u: Tensor, images: Tensor = images) -> Tensor:
                turned = u.expand_as(images)
                slope: Tensor = torch.func.jvp(run, (images,), (turned,))[1]
                return slope.to(wide(slope.dtype)).square()

            with torch.no_grad():
                parts = torch.split(signs, max(1, rows // len(images)))
                squares = [torch.func.vmap(along)(part).sum(0) for part in parts]
            found.append(torch.stack(squares).sum(0))
        return (torch.cat(found) / probes).sqrt().view(*x.shape[:2], -1)

    return task.replay(
        ("estimated", layer, rows), norms, x, _signs(noise, probes, x[0] if _mixed(task) else x[0, :1])
    )


def _run(task: Task, layer: str, parameters: Parameters) -> Callable[[Tensor], Tensor]:
    return lambda x: task.features(parameters, x, layer).flatten(1)


def _groups(task: Task, x: Tensor) -> Sequence[Tensor]:
    """All victims' samples as one batch; victim by victim where batch norm would mix them."""
    return x.unbind() if _mixed(task) else (x.flatten(0, 1),)


def _mixed(task: Task) -> bool:
    return any(isinstance(module, _BatchNorm) for module in task.modules())


def _signs(noise: NoiseSource, probes: int, like: Tensor) -> Tensor:
    """±1 of shape `[probes, *like.shape]`, one stream for each row of `like`."""
    shape = like.shape[1:]
    count = probes * math.prod(shape)
    ids = torch.arange(len(like), device=like.device)
    # Every bit of a draw is a sign.
    words = (noise.uniform(ids, (-(-count // _BITS),)) * 2**_BITS).to(torch.int32)
    bits = (words[..., None] >> torch.arange(_BITS, device=like.device, dtype=torch.int32)) & 1
    drawn = bits.flatten(1)[:, :count].view(len(ids), probes, *shape).transpose(0, 1)
    signs: Tensor = (2 * drawn - 1).to(like.dtype)
    return signs
