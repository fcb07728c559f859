"""Victim-batched optimizers: one call steps `[V, ...]`, and no victim ever feels another.

Pure functions of tensors, without host synchronisation, so that a loop of them can be a CUDA graph.
Autograd sees each step: call it under `torch.no_grad()` unless the loop itself is differentiated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError, SettingError


class State(NamedTuple):
    """What an optimizer remembers of each victim: steps done `[V]` and two moments (empty where unused).

    >>> Adam(lr=0.1).init(torch.zeros(2, 3)).steps.tolist()
    [0, 0]
    """

    steps: Tensor
    first: Tensor
    second: Tensor


class Optimizer(Protocol):
    """What each optimizer here offers.

    >>> optimizer: Optimizer = GD(lr=0.5)
    """

    def init(self, x: Tensor) -> State:
        """The state before the first step on `x` `[V, ...]`."""

    def step(
        self,
        x: Tensor,
        grad: Tensor,
        state: State,
        lr_scale: float | Tensor = 1.0,
        active: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The next `x` and state; where `active` `[V]` is False both stay as they are."""


@dataclass(frozen=True)
class GD:
    """Plain gradient descent, `x - lr · grad`.

    >>> optimizer = GD(lr=0.5)
    >>> x = torch.ones(2, 1)
    >>> optimizer.step(x, x, optimizer.init(x), active=torch.tensor([True, False]))[0].tolist()
    [[0.5], [1.0]]
    """

    lr: float

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0, above=True)

    def init(self, x: Tensor) -> State:
        """The state before the first step on `x` `[V, ...]`."""
        _check_victims(x)
        empty = x.new_zeros(x.shape[0], 0)
        return State(_no_steps(x), empty, empty)

    def step(
        self,
        x: Tensor,
        grad: Tensor,
        state: State,
        lr_scale: float | Tensor = 1.0,
        active: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The next `x` and state; where `active` `[V]` is False both stay as they are."""
        _check_step(x, grad, active)
        moved = x - _rate(self.lr, lr_scale, x) * grad
        return _kept(active, x, moved), state._replace(steps=_kept(active, state.steps, state.steps + 1))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), equal to `torch.optim.Adam` on each victim alone.

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

    def init(self, x: Tensor) -> State:
        """The state before the first step on `x` `[V, ...]`."""
        _check_victims(x)
        return State(_no_steps(x), torch.zeros_like(x), torch.zeros_like(x))

    def step(
        self,
        x: Tensor,
        grad: Tensor,
        state: State,
        lr_scale: float | Tensor = 1.0,
        active: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The next `x` and state; where `active` `[V]` is False both stay as they are."""
        _check_step(x, grad, active)
        grad = self._fed(grad)
        beta1, beta2 = self.betas
        steps = state.steps + 1
        first = state.first + (1 - beta1) * (grad - state.first)
        second = beta2 * state.second + (1 - beta2) * grad * grad
        denominator = (second / _correction(beta2, steps, x)).sqrt() + self.eps
        moved = x - _rate(self.lr, lr_scale, x) / _correction(beta1, steps, x) * (first / denominator)
        kept = State(
            _kept(active, state.steps, steps),
            _kept(active, state.first, first),
            _kept(active, state.second, second),
        )
        return _kept(active, x, moved), kept

    def _fed(self, grad: Tensor) -> Tensor:
        """What the moments are fed with."""
        return grad


@dataclass(frozen=True)
class SignedAdam(Adam):
    """Adam fed with the sign of the gradient, as in Inverting Gradients (Geiping et al. 2020).

    >>> optimizer = SignedAdam(lr=0.1)
    >>> x = torch.tensor([[1.0], [20.0]])
    >>> optimizer.step(x, x, optimizer.init(x))[1].first.flatten().tolist()
    [0.10000000149011612, 0.10000000149011612]
    """

    def _fed(self, grad: Tensor) -> Tensor:
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
        raise DataError(f"x of shape {list(x.shape)} and type {x.dtype}: expected [victims, ...] of floats")


def _check_step(x: Tensor, grad: Tensor, active: Tensor | None) -> None:
    if grad.shape != x.shape:
        raise DataError(f"grad of shape {list(grad.shape)}: expected x's shape {list(x.shape)}")
    if active is not None and (active.dtype != torch.bool or active.shape != x.shape[:1]):
        shown = f"active of shape {list(active.shape)} and type {active.dtype}"
        raise DataError(f"{shown}: expected a boolean mask of shape [{x.shape[0]}]")


def _no_steps(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)


def _per_victim(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def _rate(lr: float, scale: float | Tensor, x: Tensor) -> float | Tensor:
    if not isinstance(scale, Tensor):
        return lr * scale
    if scale.shape not in ((), x.shape[:1]):
        raise DataError(f"lr_scale of shape {list(scale.shape)}: expected one number or shape [{x.shape[0]}]")
    # Cast first: a float64 schedule must not turn a float32 x into float64.
    return lr * _per_victim(scale.to(x.dtype), x)


def _correction(beta: float, steps: Tensor, x: Tensor) -> Tensor:
    # 1 - beta^steps by expm1: in float32 the plain difference loses three digits at the first step.
    # Counts are exact in float32, not in half precision.
    counts = steps.to(torch.promote_types(x.dtype, torch.float32))
    log_beta = math.log(beta) if beta else -math.inf
    return _per_victim(-torch.expm1(counts * log_beta), x).to(x.dtype)


def _kept(active: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    return new if active is None else torch.where(_per_victim(active, new), new, old)
