"""Victim-batched optimizers against `torch.optim` on each victim alone."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.core.optim import GD, Adam, Optimizer, OptimizerState, SignedAdam
from refiner.errors import DataError, SettingError

V, SHAPE = 4, (2, 3)
ADAM = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6}

CASES: list[tuple[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer], bool]] = [
    (GD(0.05), lambda p: torch.optim.SGD(p, lr=0.05), False),
    (Adam(0.05), lambda p: torch.optim.Adam(p, lr=0.05), False),
    (Adam(**ADAM), lambda p: torch.optim.Adam(p, **ADAM), False),
    (Adam(0.05, betas=(0.0, 0.0)), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.0, 0.0)), False),
    (SignedAdam(0.05), lambda p: torch.optim.Adam(p, lr=0.05), True),
    (SignedAdam(**ADAM), lambda p: torch.optim.Adam(p, **ADAM), True),
]
OPTIMIZERS = [GD(0.1), Adam(0.1), SignedAdam(0.1)]


def quadratics(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A start, curvatures and centres: each victim has its own quadratic."""
    draw = torch.Generator().manual_seed(seed)
    start, centre = (torch.randn(V, *SHAPE, generator=draw, dtype=torch.float64) for _ in range(2))
    return start, torch.rand(V, *SHAPE, generator=draw, dtype=torch.float64) + 0.1, centre


def equal(first: OptimizerState, second: OptimizerState) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("ours", "make_reference", "signed"), CASES)
@pytest.mark.parametrize("decay", [False, True])
def test_each_victim_equals_torch_optim(
    ours: Optimizer,
    make_reference: Callable[[list[Tensor]], torch.optim.Optimizer],
    signed: bool,
    decay: bool,
) -> None:
    start, curvature, centre = quadratics()
    scales = [0.97**step if decay else 1.0 for step in range(50)]
    x, state = start.clone(), ours.init(start)
    for scale in scales:
        x, state = ours.step(x, curvature * (x - centre), state, scale)
    for victim in range(V):
        alone = start[victim].clone().requires_grad_()
        reference = make_reference([alone])
        for scale in scales:
            grad = (curvature[victim] * (alone - centre[victim])).detach()
            alone.grad = grad.sign() if signed else grad
            reference.param_groups[0]["lr"] = 0.05 * scale
            reference.step()
        torch.testing.assert_close(x[victim], alone.detach(), rtol=1e-12, atol=1e-12)
    assert state.steps.tolist() == [50] * V


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_float32_stays_float32_and_near_torch(optimizer: Optimizer) -> None:
    x = torch.randn(2, 3)
    updated, state = optimizer.step(x, x, optimizer.init(x), torch.tensor(0.5, dtype=torch.float64))
    assert updated.dtype == state.first.dtype == torch.float32
    exact, _ = optimizer.step(x.double(), x.double(), optimizer.init(x.double()), 0.5)
    torch.testing.assert_close(updated.double(), exact, rtol=0, atol=3e-7)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_changes_nothing_in_place(optimizer: Optimizer) -> None:
    start, curvature, centre = quadratics()
    x, state = optimizer.step(start, curvature, optimizer.init(start))
    x_before, state_before, grad = (
        x.clone(),
        OptimizerState(*(value.clone() for value in state)),
        centre.clone(),
    )
    optimizer.step(x, grad, state, torch.rand(V), torch.tensor([True, False, True, False]))
    assert torch.equal(x, x_before)
    assert torch.equal(grad, centre)
    assert equal(state, state_before)


@settings(max_examples=25, deadline=None)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    seed=st.integers(0, 2**32 - 1),
    victim=st.integers(0, V - 1),
    masks=st.lists(st.lists(st.booleans(), min_size=V, max_size=V), min_size=1, max_size=8),
    poison=st.sampled_from([float("nan"), float("inf"), 1e300]),
)
def test_victims_are_independent(
    optimizer: Optimizer, seed: int, victim: int, masks: list[list[bool]], poison: float
) -> None:
    """Whether the others are inactive, scaled or NaN, a victim's path is bit-identical."""
    start, curvature, centre = quadratics(seed)
    only = slice(victim, victim + 1)
    x, state = start, optimizer.init(start)
    alone, alone_state = start[only], optimizer.init(start[only])
    scale = torch.rand(V, dtype=torch.float64)
    for mask in masks:
        active = torch.tensor(mask)
        grad = torch.full_like(x, poison)
        grad[victim] = curvature[victim] * (x[victim] - centre[victim])
        x, state = optimizer.step(x, grad, state, scale, active)
        grad = curvature[only] * (alone - centre[only])
        alone, alone_state = optimizer.step(alone, grad, alone_state, scale[only], active[only])
    assert torch.equal(x[only], alone)
    assert equal(OptimizerState(*(value[only] for value in state)), alone_state)


@settings(max_examples=25, deadline=None)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    seed=st.integers(0, 2**32 - 1),
    masks=st.lists(st.lists(st.booleans(), min_size=V, max_size=V), min_size=1, max_size=8),
)
def test_an_inactive_step_changes_nothing(optimizer: Optimizer, seed: int, masks: list[list[bool]]) -> None:
    """With a mask each victim and its state end as after its active steps alone."""
    start, curvature, centre = quadratics(seed)
    x, state = start, optimizer.init(start)
    for mask in masks:
        active = torch.tensor(mask)
        grad = torch.where(active.view(V, 1, 1), curvature * (x - centre), torch.nan)
        x, state = optimizer.step(x, grad, state, active=active)
    assert state.steps.tolist() == [sum(column) for column in zip(*masks, strict=True)]
    for victim in range(V):
        only = slice(victim, victim + 1)
        alone, alone_state = start[only], optimizer.init(start[only])
        for _ in range(int(state.steps[victim])):
            alone, alone_state = optimizer.step(alone, curvature[only] * (alone - centre[only]), alone_state)
        assert torch.equal(x[only], alone)
        assert equal(OptimizerState(*(value[only] for value in state)), alone_state)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 1, 3, 4)])
def test_any_shape_after_the_victim_axis_works(optimizer: Optimizer, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    victims = shape[0]
    updated, _ = optimizer.step(x, x, optimizer.init(x), torch.ones(victims), torch.ones(victims).bool())
    assert updated.shape == shape


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_reads_no_value_on_the_host(optimizer: Optimizer) -> None:
    """Tensors on the meta device have no values: reading one would fail, as in a CUDA graph."""
    x = torch.empty(V, *SHAPE, device="meta")
    active = torch.empty(V, dtype=torch.bool, device="meta")
    updated, _ = optimizer.step(x, x, optimizer.init(x), torch.empty(V, device="meta"), active)
    assert updated.shape == x.shape


@pytest.mark.parametrize("optimizer_class", [GD, Adam, SignedAdam])
@pytest.mark.parametrize("lr", [0, -1.0, float("nan"), float("inf"), "0.1", True])
def test_a_wrong_learning_rate_is_an_error(optimizer_class: Callable[[float], Optimizer], lr: float) -> None:
    with pytest.raises(SettingError, match=r"^lr = .*: expected a number in \(0, ∞\)$"):
        optimizer_class(lr)


@pytest.mark.parametrize("optimizer_class", [Adam, SignedAdam])
@pytest.mark.parametrize("betas", [(0.9, 1.0), (-0.1, 0.9), (0.9,), 0.9, ("a", 0.9), (float("nan"), 0.5)])
def test_wrong_betas_are_an_error(
    optimizer_class: Callable[..., Optimizer], betas: tuple[float, float]
) -> None:
    with pytest.raises(SettingError, match=r"^betas = .*: expected two numbers in \[0, 1\)$"):
        optimizer_class(0.1, betas=betas)


@pytest.mark.parametrize("eps", [0, -1e-8, float("nan")])
def test_a_wrong_eps_is_an_error(eps: float) -> None:
    with pytest.raises(SettingError, match=r"^eps = .*: expected a number in \(0, ∞\)$"):
        Adam(0.1, eps=eps)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_wrong_tensors_are_an_error(optimizer: Optimizer) -> None:
    x = torch.rand(2, 3)
    state = optimizer.init(x)
    with pytest.raises(DataError, match=r"^grad = torch.float32 \[2\]: expected x's shape \[2, 3\]$"):
        optimizer.step(x, x[:, 0], state)
    with pytest.raises(DataError, match=r"^active = .*: expected a boolean mask of shape \[2\]$"):
        optimizer.step(x, x, state, active=torch.ones(2))
    with pytest.raises(DataError, match=r"^active = .*: expected a boolean mask of shape \[2\]$"):
        optimizer.step(x, x, state, active=torch.ones(3).bool())
    with pytest.raises(
        DataError, match=r"^lr_scale = torch.float32 \[3\]: expected one number or shape \[2\]$"
    ):
        optimizer.step(x, x, state, torch.ones(3))
    with pytest.raises(DataError, match=r"^x = .* \[\]: expected a floating-point tensor \[victims, ...\]$"):
        optimizer.init(torch.tensor(1.0))
    with pytest.raises(
        DataError, match=r"^x = .*int64 \[2\]: expected a floating-point tensor \[victims, ...\]$"
    ):
        optimizer.init(torch.zeros(2, dtype=torch.int64))
