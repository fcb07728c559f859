"""Victim-batched optimizers: one call steps `[V, ...]`, and no victim influences another.

Pure functions of tensors, without host synchronisation, so that a loop of them can be a CUDA graph. Autograd
records each step: call it under `torch.no_grad()` unless the loop itself is differentiated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.core.input_checks import input_error
from refiner.errors import SettingError


class OptimizerState(NamedTuple):
    """The state of each victim: steps done `[V]` and two moments, which are empty where unused.

    >>> Adam(lr=0.1).init(torch.zeros(2, 3)).steps.tolist()
    [0, 0]
    """

    steps: Tensor
    first: Tensor
    second: Tensor


class Optimizer(Protocol):
    """The interface of every optimizer here: a pure `init` and a pure `step`.

    >>> optimizer: Optimizer = GD(lr=0.5)
    """

    def init(self, x: Tensor) -> OptimizerState:
        """The state before the first step.

        Args:
            x: The starting point `[V, ...]`.

        Returns:
            A state with no steps done.

        Raises:
            DataError: `x` is not a tensor of floats with a victim axis.
        """

    def step(
        self,
        x: Tensor,
        grad: Tensor,
        state: OptimizerState,
        lr_scale: float | Tensor = 1.0,
        active: Tensor | None = None,
    ) -> tuple[Tensor, OptimizerState]:
        """One step of every active victim.

        Args:
            x: The current point `[V, ...]`.
            grad: The gradient at `x`, of the same shape.
            state: The state at `x`.
            lr_scale: A factor on the learning rate, one number or one for each victim `[V]`.
            active: A boolean mask `[V]`; where it is False, point and state stay as they are.

        Returns:
            The next point and state.

        Raises:
            DataError: A shape or dtype does not fit.
        """


@dataclass(frozen=True)
class GD:
    """Plain gradient descent, `x - lr · grad`.

    Args:
        lr: The learning rate, > 0.

    Raises:
        SettingError: `lr` is out of its range.

    >>> optimizer = GD(lr=0.5)
    >>> x = torch.ones(2, 1)
    >>> optimizer.step(x, x, optimizer.init(x), active=torch.tensor([True, False]))[0].tolist()
    [[0.5], [1.0]]
    """

    lr: float

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0, above=True)

    def init(self, x: Tensor) -> OptimizerState:
        """The state before the first step on `x [V, ...]`; see `Optimizer.init`."""
        _check_victims(x)
        empty = x.new_zeros(x.shape[0], 0)
        return OptimizerState(_no_steps(x), empty, empty)

    def step(
        self,
        x: Tensor,
        grad: Tensor,
        state: OptimizerState,
        lr_scale: float | Tensor = 1.0,
        active: Tensor | None = None,
    ) -> tuple[Tensor, OptimizerState]:
        """The next point and state; see `Optimizer.step`."""
        _check_step(x, grad, active)
        updated = x - _rate(self.lr, lr_scale, x) * grad
        return _where_active(active, x, updated), state._replace(
            steps=_where_active(active, state.steps, state.steps + 1)
        )


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), equal to `torch.optim.Adam` on each victim alone.

    Args:
        lr: The learning rate, > 0.
        betas: The decay of the two moments, each in [0, 1).
        eps: Added to the denominator, > 0.

    Raises:
        SettingError: A setting is out of its range.

    >>> optimizer = Adam(lr=0.1)
    >>> x = torch.tensor([[1.0], [20.0]])
    >>> [round(float(v), 4) for v in optimizer.step(x, x, optimizer.init(x))[0]]
    [0.9, 19.9]
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0, above=True)
        checks.number("eps", self.eps, 0, above=True)
        object.__setattr__(self, "betas", _betas(self.betas))

    def init(self, x: Tensor) -> OptimizerState:
        """The state before the first step on `x [V, ...]`; see `Optimizer.init`."""
        _check_victims(x)
        return OptimizerState(_no_steps(x), torch.zeros_like(x), torch.zeros_like(x))

    def step(
        self,
        x: Tensor,
        grad: Tensor,
        state: OptimizerState,
        lr_scale: float | Tensor = 1.0,
        active: Tensor | None = None,
    ) -> tuple[Tensor, OptimizerState]:
        """The next point and state; see `Optimizer.step`."""
        _check_step(x, grad, active)
        grad = self._moment_input(grad)
        beta1, beta2 = self.betas
        steps = state.steps + 1
        first = state.first + (1 - beta1) * (grad - state.first)
        second = beta2 * state.second + (1 - beta2) * grad * grad
        denominator = (second / _bias_correction(beta2, steps, x)).sqrt() + self.eps
        updated = x - _rate(self.lr, lr_scale, x) / _bias_correction(beta1, steps, x) * (first / denominator)
        new_state = OptimizerState(
            _where_active(active, state.steps, steps),
            _where_active(active, state.first, first),
            _where_active(active, state.second, second),
        )
        return _where_active(active, x, updated), new_state

    def _moment_input(self, grad: Tensor) -> Tensor:
        """The value whose moments are estimated."""
        return grad


@dataclass(frozen=True)
class SignedAdam(Adam):
    """Adam on the sign of the gradient, as in Inverting Gradients (Geiping et al. 2020); settings as `Adam`.

    >>> optimizer = SignedAdam(lr=0.1)
    >>> x = torch.tensor([[1.0], [20.0]])
    >>> optimizer.step(x, x, optimizer.init(x))[1].first.flatten().tolist()
    [0.10000000149011612, 0.10000000149011612]
    """

    def _moment_input(self, grad: Tensor) -> Tensor:
        return grad.sign()


def _betas(value: Sequence[float]) -> tuple[float, float]:
    error = checks.wrong("betas", value, "two numbers in [0, 1)")
    if not isinstance(value, Sequence) or len(value) != 2:
        raise error
    try:
        first, second = (checks.number("betas", beta, 0, 1) for beta in value)
    except SettingError:
        raise error from None
    if max(first, second) >= 1:
        raise error
    return first, second


def _check_victims(x: Tensor) -> None:
    if x.dim() < 1 or not x.is_floating_point():
        raise input_error("x", x, "a floating-point tensor [victims, ...]")


def _check_step(x: Tensor, grad: Tensor, active: Tensor | None) -> None:
    if grad.shape != x.shape:
        raise input_error("grad", grad, f"x's shape {list(x.shape)}")
    if active is not None and (active.dtype != torch.bool or active.shape != x.shape[:1]):
        raise input_error("active", active, f"a boolean mask of shape [{x.shape[0]}]")


def _no_steps(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)


def _per_victim(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def _rate(lr: float, scale: float | Tensor, x: Tensor) -> float | Tensor:
    if not isinstance(scale, Tensor):
        return lr * scale
    if scale.shape not in ((), x.shape[:1]):
        raise input_error("lr_scale", scale, f"one number or shape [{x.shape[0]}]")
    # Cast first: a float64 schedule must not turn a float32 x into float64.
    return lr * _per_victim(scale.to(x.dtype), x)


def _bias_correction(beta: float, steps: Tensor, x: Tensor) -> Tensor:
    # 1 - beta^steps by expm1: in float32 the plain difference loses three digits at the first step.
    # Counts are exact in float32, not in half precision.
    counts = steps.to(torch.promote_types(x.dtype, torch.float32))
    log_beta = math.log(beta) if beta else -math.inf
    return _per_victim(-torch.expm1(counts * log_beta), x).to(x.dtype)


def _where_active(active: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    return new if active is None else torch.where(_per_victim(active, new), new, old)
