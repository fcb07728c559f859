"""Equation 2 and the ε-projection for a chunk of victims: robust data and the gradients to upload."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from refiner.core.cuda_graphs import start_on_side_stream
from refiner.core.gradients import flatten, gradients, gradients_and_scores
from refiner.core.precision import tensor_float32
from refiner.core.task import Parameters, Task
from refiner.defenses.refine.objective import GradientFunction, Objective
from refiner.defenses.refine.privacy import noise_ratio, squared_error
from refiner.defenses.refine.projection import project
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.defenses.refine.solver import solve
from refiner.defenses.refine.utility import make_utility
from refiner.evaluation.network import EvaluationNetwork
from refiner.shaped_noise import NaturalNoise

# From this many convolution weights on, a backward pass through a gradient recorded in bfloat16 is faster and
# changes the final distance by a few thousandths; for a vision transformer by two hundredths.
BFLOAT16_MIN_CONV_WEIGHTS = 1_000_000
# The largest change of a variable in a finite difference: of a pixel in units of the input range, of white
# noise in units of its standard deviation.
PIXEL_STEP, WHITE_STEP = 0.05, 0.3


class Crafted(NamedTuple):
    """The result of `craft_robust_data`."""

    upload: Tensor
    """`[V, N]`"""
    robust: Tensor
    """`[V, B, *input]`"""
    residual: Tensor
    """`[V, N]`: what error feedback adds to the next target."""
    scores: Tensor
    """`[V, B, classes]` of the data towards whose gradient was searched; empty without a search."""


def craft_robust_data(
    settings: RefinerSettings,
    task: Task,
    parameters: Parameters,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    searched: Tensor,
    residual: Tensor,
    iterations: int,
    statistics: NaturalNoise | None,
) -> Crafted:
    """Uploads and robust data, searched from `start`, and the residuals after them.

    A pure function of its tensors, as a CUDA graph requires. The search may use TF32; uploads are computed in
    float32. Without a search an upload depends on `start` and the labels only: the real gradient is not
    computed. The same holds for single samples that are not `searched [V, B]`.
    """
    low, high = settings.limits()

    def gradient(data: Tensor) -> Tensor:
        return flatten(gradients(task, data, y, parameters=parameters))

    def float32_gradient(data: Tensor) -> Tensor:
        with tensor_float32(False):
            return gradient(data)

    if not settings.searches(x.shape[1]):
        robust = start.clamp(low, high) if settings.clamp else start
        return Crafted(float32_gradient(robust), robust, residual, scores=x.new_empty(0))

    searched = searched.view(*x.shape[:2], *(1 for _ in x.shape[2:]))
    x = torch.where(searched, x, start)

    def real_pass() -> tuple[Tensor, Tensor]:
        # In float32: with ε the upload is computed from it.
        with tensor_float32(False):
            gradient, scores = gradients_and_scores(task, x, y, parameters=parameters)
        return flatten(gradient), scores

    real = start_on_side_stream(real_pass)
    recorded: GradientFunction = gradient
    if settings.solver == "lbfgs" and _records_in_bfloat16(task, x):
        recorded = _bfloat16_gradient(task, parameters, y)
    variables, probe = start, PIXEL_STEP * (high - low)
    if statistics is not None:
        # White variables: a step then has the shape of the noise, and can't stand out from it.
        variables, probe = torch.zeros_like(start), WHITE_STEP

    def to_data(variables: Tensor) -> Tensor:
        if statistics is None:
            return torch.where(searched, variables, start)
        change: Tensor = statistics(_bounded(variables, settings.radius))
        return start + torch.where(searched, (high - low) * change.to(start.dtype), 0)

    objective = Objective(
        gradient=lambda values: gradient(to_data(values)),
        recorded_gradient=lambda values: recorded(to_data(values)),
        make_utility=lambda: make_utility(
            task,
            parameters,
            real()[0] + residual if settings.error_feedback else real()[0],
            tau=settings.tau,
            element_power=settings.element_power,
            relative=settings.relative,
        ),
        privacy=_privacy_metric(settings, x),
        beta=settings.beta,
        probe=probe,
    )
    with tensor_float32(True):
        variables = solve(
            objective, variables, solver=settings.solver, iterations=iterations, step=settings.step
        )
    # Frees the recorded gradient, which is large, before more memory is needed.
    del objective
    robust = to_data(variables)
    if settings.clamp:
        robust = robust.clamp(low, high)
    (target, scores), upload = real(), float32_gradient(robust)
    if settings.epsilon is not None:
        radius = settings.epsilon * target.norm(dim=1) if settings.epsilon_relative else settings.epsilon
        upload = project(upload, target, radius)
    if settings.error_feedback:
        left_over = target + residual - upload
        # A failed round must not spoil later ones.
        residual = torch.where(left_over.isfinite().all(1, keepdim=True), left_over, residual)
    return Crafted(upload, robust, residual, scores)


def _bounded(white: Tensor, limit: float | None) -> Tensor:
    """White variables whose absolute values stay below `limit`; almost unchanged where they are small."""
    return white if limit is None else limit * torch.tanh(white / limit)


def _privacy_metric(settings: RefinerSettings, x: Tensor) -> Callable[[Tensor], Tensor]:
    low, high = settings.limits()
    if settings.privacy == "mse":
        return lambda data: squared_error(data, x, low, high)
    network = EvaluationNetwork.bundled(x.device) if settings.network is None else settings.network
    return lambda data: noise_ratio(network, data, low, high)


def _records_in_bfloat16(task: Task, x: Tensor) -> bool:
    """Whether the recorded gradient is computed in bfloat16: on a GPU, for large convolutional models."""
    conv_weights = sum(shape.numel() for shape in task.shapes.values() if len(shape) == 4)
    large = conv_weights >= BFLOAT16_MIN_CONV_WEIGHTS
    return x.is_cuda and x.dtype == torch.float32 and large and task.supports_bfloat16


def _bfloat16_gradient(task: Task, parameters: Parameters, y: Tensor) -> GradientFunction:
    """The gradient computed in bfloat16."""
    rounded = {name: value.bfloat16() for name, value in parameters.items()}
    return lambda data: flatten(gradients(task, data.bfloat16(), y, parameters=rounded)).float()
