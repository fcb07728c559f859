"""Sweep: several settings of an attack in one run, each with the result of a run alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.conftest import ALL, GENERATOR, QUICK
from torch import Tensor

from refiner.attacks import GGL, Attack, GradInversion, Observation, Sweep, tunable
from refiner.attacks.matching import checkpoint, gradient_matching
from refiner.attacks.matching import idlg as lbfgs_attacks
from refiner.core.lbfgs import LBFGS
from refiner.errors import DataError, SettingError

EACH = pytest.mark.parametrize("name", QUICK)
GRID: dict[str, tuple[dict[str, float], ...]] = {
    name: ({"lr": 0.01, "total_variation": 1.0}, {"lr": 0.1, "total_variation": 1e-3}, {"lr": 0.03})
    for name in ("inverting", "gradinversion")
}


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the 20 steps in an iteration of DLG and iDLG to 4."""
    monkeypatch.setattr(lbfgs_attacks, "_STEPS_PER_ITERATION", 4)


def short(name: str) -> Any:
    return replace(QUICK[name], iterations=1 if name in ("dlg", "idlg") else 4)  # type: ignore[type-var]


def grid(name: str) -> tuple[dict[str, float], ...]:
    return GRID.get(name, ({"lr": 0.01}, {"lr": 1.0}))


@EACH
def test_each_point_has_the_result_of_a_run_alone(name: str, small_observation: Observation) -> None:
    attack, points = short(name), grid(name)
    alone = torch.cat(
        [replace(attack, **point).reconstruct(small_observation, threat=ALL, seed=3).x for point in points]
    )
    swept = Sweep(attack, points).reconstruct(small_observation, threat=ALL, seed=3)
    assert swept.x.shape == alone.shape and len(swept.objective) == len(points) * small_observation.victims
    torch.testing.assert_close(swept.x, alone, rtol=1e-3, atol=1e-3)
    # The points differ from each other.
    first, second = swept.x.split(small_observation.victims)[:2]
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize("name", [name for name in QUICK if name != "dlg"])  # with labels DLG is iDLG
def test_a_sweep_with_granted_labels_and_restarts(
    name: str, small_observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    attack, points = replace(short(name), restarts=2), grid(name)
    granted, threat = replace(small_observation, labels=victims[1]), replace(ALL, labels=True)
    alone = [replace(attack, **point).reconstruct(granted, threat=threat) for point in points]
    swept = Sweep(attack, points).reconstruct(granted, threat=threat)
    assert torch.equal(swept.labels, victims[1].repeat(len(points), 1))
    torch.testing.assert_close(swept.x, torch.cat([r.x for r in alone]), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(swept.objective, torch.cat([r.objective for r in alone]), rtol=1e-3, atol=1e-3)


def test_a_chunk_may_span_two_points(small_observation: Observation) -> None:
    sweep = Sweep(short("inverting"), grid("inverting"))
    one_chunk, many_chunks = (sweep.reconstruct(small_observation, chunk=chunk).x for chunk in (9, 2))
    torch.testing.assert_close(one_chunk, many_chunks, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["inverting", "idlg"])
def test_an_interrupted_sweep_resumes_with_the_same_result(
    name: str, small_observation: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_matching, "_ITERATIONS_PER_BLOCK", 2)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_SAVES", 0.0)
    sweep, state = Sweep(short(name), grid(name)), tmp_path / "state.safetensors"
    uninterrupted = sweep.reconstruct(small_observation, chunk=4)
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.reconstruct(small_observation, chunk=4, resume=state, on_progress=interrupt)
    resumed = sweep.reconstruct(small_observation, chunk=4, resume=state, on_progress=interrupt)
    assert torch.equal(resumed.x, uninterrupted.x)
    other = Sweep(short(name), [*grid(name)[:-1], {"lr": 0.5}])
    with pytest.raises(DataError, match="differs in points; nothing was overwritten"):
        other.reconstruct(small_observation, chunk=4, resume=state)


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        (QUICK["inverting"], ("total_variation", "lr")),
        (GradInversion(), ("total_variation", "lr")),
        (QUICK["idlg"], ("lr",)),
        (GGL(generator=GENERATOR), ("lr",)),
    ],
)
def test_tunable_settings(attack: Attack, settings: tuple[str, ...]) -> None:
    assert tunable(attack) == settings


@pytest.mark.parametrize(
    ("name", "points", "message"),
    [
        ("inverting", [], r"points = \[\]: expected one or more"),
        (
            "inverting",
            [{"iterations": 5}],
            "points = 'iterations': expected settings among total_variation, lr of inverting",
        ),
        (
            "idlg",
            [{"total_variation": 1.0}],
            "points = 'total_variation': expected settings among lr of idlg",
        ),
        ("inverting", [{"lr": -1.0}], r"lr = -1.0: expected a number in \(0, ∞\)"),
        ("inverting", [{"total_variation": "a"}], "total_variation = 'a': expected a number"),
    ],
)
def test_wrong_points_raise(name: str, points: list[Mapping[str, float]], message: str) -> None:
    with pytest.raises((SettingError, DataError), match=message):
        Sweep(short(name), points)


def test_each_victim_has_its_own_learning_rate() -> None:
    """The first step of L-BFGS is the learning rate times the gradient."""

    def plane(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(1), torch.ones_like(x)

    x, optimizer = torch.zeros(2, 4), LBFGS()
    moved, _ = optimizer.step(x, optimizer.init(x, plane), plane, lr_scale=torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(moved[0], 10 * moved[1])
