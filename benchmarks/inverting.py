"""InvertingGrad, plain: the reference loop with which solvers are judged, all victims at once.

Cosine distance and total variation; signed Adam with 0.1, divided by ten at 3/8, 5/8 and 7/8 of the steps.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from refiner.core import Task, flatten, gradients
from refiner.core.optim import SignedAdam
from refiner.core.precision import tensor_float32

Step = Callable[..., tuple[Tensor, ...]]


def invert(
    task: Task, observed: Tensor, y: Tensor, tv: Tensor, *, steps: int = 1500, seed: int = 0
) -> Tensor:
    """Images `[V, 1, C, H, W]` rebuilt from uploads `observed [V, N]`; `tv [V]` weighs total variation."""
    draws = torch.Generator(observed.device).manual_seed(seed)
    x = torch.rand((len(observed), 1, *task.input_shape), generator=draws, device=observed.device)
    optimizer = SignedAdam(lr=0.1)
    state = optimizer.init(x)
    target = observed / observed.norm(dim=1, keepdim=True).clamp_min(1e-30)
    parameters = task.parameters()
    scale = torch.ones((), device=x.device)

    def step(x: Tensor, *moments: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            g = flatten(gradients(task, point, y, parameters=parameters))
            cosine = (g * target).sum(1) / g.norm(dim=1).clamp_min(1e-30)
            variation = (
                point.diff(dim=-1).abs().mean((1, 2, 3, 4)) + point.diff(dim=-2).abs().mean((1, 2, 3, 4))
            ) / 2
            (slope,) = torch.autograd.grad((1 - cosine + tv * variation).sum(), point)
        x, after = optimizer.step(x, slope, type(state)(*moments), lr_scale=scale)
        return x.clamp(0, 1), *after

    with tensor_float32(False):
        advance = _recorded(step, (x, *state)) if x.is_cuda else step
        current: tuple[Tensor, ...] = (x, *state)
        for i in range(steps):
            scale.fill_(0.1 ** sum(i >= steps * part // 8 for part in (3, 5, 7)))
            current = advance(*current)
    return current[0].clone()


def _recorded(step: Step, example: tuple[Tensor, ...]) -> Step:
    """`step` as a CUDA graph that feeds itself: after the first call its arguments are where they must be."""
    held = [t.clone() for t in example]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for mine, new in zip(held, step(*held), strict=True):
            mine.copy_(new)

    def advance(*_: Tensor) -> tuple[Tensor, ...]:
        graph.replay()
        return tuple(held)

    return advance


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of every victim `[V, ...]`, in dB, for pixels in 0..1."""
    return -10 * (a - b).square().flatten(1).mean(1).clamp_min(1e-10).log10()


def blind_guesses(x: Tensor, others: Tensor) -> dict[str, float]:
    """Mean PSNR of guesses that need no upload: flat grey, mean of other images, the own mean colour."""
    return {
        "grey": float(psnr(torch.full_like(x, 0.5), x).mean()),
        "mean image": float(psnr(others.mean(0, keepdim=True).expand_as(x), x).mean()),
        "own mean colour": float(psnr(x.mean((-2, -1), keepdim=True).expand_as(x), x).mean()),
    }
