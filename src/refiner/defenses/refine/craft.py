"""Equation 2 and the ε-projection for a chunk of victims: robust data and the gradients to upload."""

from collections.abc import Callable

import torch
from torch import Tensor

from refiner.core.cuda_graphs import start_on_side_stream
from refiner.core.gradients import flatten, gradients, gradients_jvp
from refiner.core.precision import tensor_float32
from refiner.core.task import Parameters, Task
from refiner.defenses.refine.objective import GradientFunction, Objective
from refiner.defenses.refine.privacy import noise_ratio, squared_error
from refiner.defenses.refine.projection import project
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.defenses.refine.solver import solve
from refiner.defenses.refine.utility import make_utility
from refiner.evaluation.network import EvaluationNetwork

# An upload closer to the real gradient than this share of the floor is rejected: the noise had almost no
# effect. Distances in training are far larger.
MIN_SHARE_OF_FLOOR = 0.05
# Smaller batches use conjugate steps, which end on the floor; secant steps only come close to it.
SECANT_MIN_BATCH = 16
# From this many convolution weights on, a backward pass through a gradient recorded in bfloat16 is faster and
# changes the final distance by a few thousandths; for a vision transformer by two hundredths.
BFLOAT16_MIN_CONV_WEIGHTS = 1_000_000
# In units of the input range: the largest change of a pixel in one step, and in a finite difference.
MAX_STEP, FINITE_DIFFERENCE_STEP = 0.5, 0.05


def craft_robust_data(
    settings: RefinerSettings,
    task: Task,
    parameters: Parameters,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    sign: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Uploads `[V, N]`, robust data `[V, B, *input]`, and two flags: uploads differ enough; all is finite.

    A pure function of its tensors, as a CUDA graph requires. The search begins at `start`; `sign [V]` is used
    only with random signs. The search may use TF32; the uploads are computed in float32.
    """
    low, high = settings.input_range
    floor = settings.floor / x.shape[1] ** 0.5

    def gradient(data: Tensor) -> Tensor:
        return flatten(gradients(task, data, y, parameters=parameters))

    def float32_gradient(data: Tensor) -> Tensor:
        with tensor_float32(False):
            return gradient(data)

    straight = settings.upload == "straight"
    solver = settings.solver
    if solver == "secant" and x.shape[1] < SECANT_MIN_BATCH:
        solver = "conjugate"
    # In float32: the check against uploads that hide nothing compares with it, and the error of TF32 is
    # larger than the tolerance of that check.
    real_gradient = start_on_side_stream(lambda: float32_gradient(x))
    in_bfloat16 = solver == "secant" and _records_in_bfloat16(task, x)
    objective = Objective(
        gradient=gradient,
        recorded_gradient=_bfloat16_gradient(task, parameters, y) if in_bfloat16 else gradient,
        make_utility=lambda: make_utility(
            task,
            parameters,
            real_gradient(),
            tau=settings.tau,
            element_power=settings.element_power,
            relative=settings.relative,
        ),
        privacy=_privacy_metric(settings, x),
        beta=settings.beta,
        floor=floor,
        probe=FINITE_DIFFERENCE_STEP * (high - low),
        real=x if straight else None,
    )
    with tensor_float32(True):
        robust = solve(
            objective,
            start,
            solver=solver,
            iterations=iterations,
            step=settings.step,
            max_step=MAX_STEP * (high - low),
        )
    # Frees the recorded gradient, which is large, before more memory is needed.
    del objective
    if settings.clamp:
        robust = robust.clamp(low, high)
    target = real_gradient()
    if straight:
        with tensor_float32(False):
            upload = target + flatten(gradients_jvp(task, x, y, robust - x, parameters=parameters))
    else:
        upload = float32_gradient(robust)
    if settings.random_sign:
        upload = target + sign[:, None] * (upload - target)
    if settings.epsilon is not None:
        radius = settings.epsilon * target.norm(dim=1) if settings.epsilon_relative else settings.epsilon
        upload = project(upload, target, radius)
    finite = upload.isfinite().all() & robust.isfinite().all()
    differs = _differs_from(upload, target, MIN_SHARE_OF_FLOOR * floor).all()
    return upload, robust, torch.stack([differs, finite])


def _privacy_metric(settings: RefinerSettings, x: Tensor) -> Callable[[Tensor], Tensor]:
    low, high = settings.input_range
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


def _differs_from(upload: Tensor, real: Tensor, least: float) -> Tensor:
    """Whether each upload's relative distance from the real gradient is at least `least`, `[V]`.

    A model that does not react to noise would reveal its real gradient, and so would a tiny ε. The distance
    is over all parameters together: a server that adds a layer with small gradients evades this check.
    Norms are taken of scaled values, so that tiny gradients are measured too. Where values are not finite the
    result is True: such uploads are rejected elsewhere.
    """
    scale = real.abs().amax(1, keepdim=True)
    length = (real / scale).norm(dim=1)
    distance = ((upload - real) / scale).norm(dim=1)
    near: Tensor = distance < least * length
    return ~near
