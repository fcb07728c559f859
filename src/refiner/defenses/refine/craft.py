"""Equation 2 and the ε-projection for a chunk of victims: robust data, and the gradient that leaves."""

from collections.abc import Callable

import torch
from torch import Tensor

from refiner.core.cuda_graphs import beside
from refiner.core.gradients import directional, flatten, gradients
from refiner.core.precision import tensor_float32
from refiner.core.task import Parameters, Task
from refiner.defenses.refine.privacy import noise_share, squared_error
from refiner.defenses.refine.problem import Gradient, Problem
from refiner.defenses.refine.projection import project
from refiner.defenses.refine.settings import Settings
from refiner.defenses.refine.solver import solve
from refiner.defenses.refine.utility import utility
from refiner.evaluation.network import EvaluationNetwork

# Below this share of the floor the noise has changed next to nothing. It is far below what training meets.
DEAF = 0.05
# Below this size a batch meets the floor, where conjugate steps end and secants only come near.
LARGE = 16
# With this many weights in convolutions, walking back through a gradient recorded in bfloat16 is faster, and
# moves the distance reached by a few thousandths; in a vision transformer it moves it by two hundredths.
HEAVY = 1_000_000
# As shares of the input range: the most that a step moves a pixel, and how far a finite difference does.
REACH, PROBE = 0.5, 0.05


def craft(
    settings: Settings,
    task: Task,
    parameters: Parameters,
    x: Tensor,
    y: Tensor,
    begin: Tensor,
    sign: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Uploads `[V, N]`, robust data `[V, B, *input]`, and two flags: every upload hides, all is finite.

    A function of its tensors alone, as a CUDA graph needs it.

    `begin` is where the search starts; `sign [V]` is used with random signs only. The search may use TF32,
    what leaves is computed in float32.
    """
    low, high = settings.input_range
    floor = settings.floor / x.shape[1] ** 0.5

    def gradient(data: Tensor) -> Tensor:
        return flatten(gradients(task, data, y, parameters=parameters))

    def exact(data: Tensor) -> Tensor:
        with tensor_float32(False):
            return gradient(data)

    straight = settings.upload == "straight"
    solver = settings.solver
    if solver == "secant" and x.shape[1] < LARGE:
        solver = "conjugate"
    # In full precision: a guard compares with it, and TF32 is off by more than the guard allows.
    real = beside(lambda: exact(x))
    half = solver == "secant" and _in_half(task, x)
    problem = Problem(
        gradient=gradient,
        recorded=_halved(task, parameters, y) if half else gradient,
        measure=lambda: utility(
            task,
            parameters,
            real(),
            tau=settings.tau,
            element_power=settings.element_power,
            relative=settings.relative,
        ),
        privacy=_privacy(settings, x),
        beta=settings.beta,
        floor=floor,
        probe=PROBE * (high - low),
        real=x if straight else None,
    )
    with tensor_float32(True):
        robust = solve(
            problem,
            begin,
            solver=solver,
            iterations=iterations,
            step=settings.step,
            reach=REACH * (high - low),
        )
    # A recorded gradient is large, and what follows needs room of its own.
    del problem
    if settings.clamp:
        robust = robust.clamp(low, high)
    target = real()
    if straight:
        with tensor_float32(False):
            upload = target + flatten(directional(task, x, y, robust - x, parameters=parameters))
    else:
        upload = exact(robust)
    if settings.random_sign:
        upload = target + sign[:, None] * (upload - target)
    if settings.epsilon is not None:
        radius = settings.epsilon * target.norm(dim=1) if settings.epsilon_relative else settings.epsilon
        upload = project(upload, target, radius)
    finite = upload.isfinite().all() & robust.isfinite().all()
    return upload, robust, torch.stack([_hidden(upload, target, DEAF * floor).all(), finite])


def _privacy(settings: Settings, x: Tensor) -> Callable[[Tensor], Tensor]:
    low, high = settings.input_range
    if settings.privacy == "mse":
        return lambda data: squared_error(data, x, low, high)
    network = EvaluationNetwork.bundled(x.device) if settings.network is None else settings.network
    return lambda data: noise_share(network, data, low, high)


def _in_half(task: Task, x: Tensor) -> bool:
    weights = sum(shape.numel() for shape in task.shapes.values() if len(shape) == 4)
    return x.is_cuda and x.dtype == torch.float32 and weights >= HEAVY and task.takes_half


def _halved(task: Task, parameters: Parameters, y: Tensor) -> Gradient:
    """The gradient computed in bfloat16."""
    half = {name: value.bfloat16() for name, value in parameters.items()}
    return lambda data: flatten(gradients(task, data.bfloat16(), y, parameters=half)).float()


def _hidden(upload: Tensor, real: Tensor, least: float) -> Tensor:
    """Whether each upload is at least this far away from the real gradient, relative to it.

    A model that is deaf to noise would give its real gradient away, and so would a tiny ε. All parameters are
    measured together: a server that adds a quiet layer beside loud ones gets round this.
    Lengths are those of scaled values, so that tiny gradients are measured too. Where values are not finite
    this says yes: they are refused elsewhere.
    """
    scale = real.abs().amax(1, keepdim=True)
    length = (real / scale).norm(dim=1)
    away = ((upload - real) / scale).norm(dim=1)
    near: Tensor = away < least * length
    return ~near
