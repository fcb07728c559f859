"""Several settings of an attack in one run: each as if it had been run alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.conftest import ALL, PAINTER, QUICK
from torch import Tensor

from refiner.attacks import (
    GGL,
    Attack,
    GradInversion,
    Observation,
    Sweep,
    checkpoint,
    matching,
    tunable,
)
from refiner.attacks import idlg as lbfgs_attacks
from refiner.core.lbfgs import LBFGS
from refiner.errors import DataError, SettingError

EACH = pytest.mark.parametrize("name", QUICK)
GRID: dict[str, tuple[dict[str, float], ...]] = {
    name: ({"lr": 0.01, "total_variation": 1.0}, {"lr": 0.1, "total_variation": 1e-3}, {"lr": 0.03})
    for name in ("inverting", "gradinversion")
}


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration of DLG and iDLG is twenty steps; a few tell as much."""
    monkeypatch.setattr(lbfgs_attacks, "_STEPS_EACH", 4)


def short(name: str) -> Any:
    return replace(QUICK[name], iterations=1 if name in ("dlg", "idlg") else 4)  # type: ignore[type-var]


def grid(name: str) -> tuple[dict[str, float], ...]:
    return GRID.get(name, ({"lr": 0.01}, {"lr": 1.0}))


@EACH
def test_each_point_is_what_it_is_alone(name: str, light: Observation) -> None:
    attack, points = short(name), grid(name)
    alone = torch.cat([replace(attack, **point).reconstruct(light, threat=ALL, seed=3).x for point in points])
    found = Sweep(attack, points).reconstruct(light, threat=ALL, seed=3)
    assert found.x.shape == alone.shape and len(found.objective) == len(points) * light.victims
    torch.testing.assert_close(found.x, alone, rtol=1e-3, atol=1e-3)
    # The points do differ.
    first, second = found.x.split(light.victims)[:2]
    assert not torch.allclose(first, second, atol=1e-2)


@EACH
def test_granted_labels_and_restarts(name: str, light: Observation, victims: tuple[Tensor, Tensor]) -> None:
    attack, points = replace(short(name), restarts=2), grid(name)
    granted, threat = replace(light, labels=victims[1]), replace(ALL, labels=True)
    alone = [replace(attack, **point).reconstruct(granted, threat=threat) for point in points]
    found = Sweep(attack, points).reconstruct(granted, threat=threat)
    assert torch.equal(found.labels, victims[1].repeat(len(points), 1))
    torch.testing.assert_close(found.x, torch.cat([r.x for r in alone]), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.objective, torch.cat([r.objective for r in alone]), rtol=1e-3, atol=1e-3)


def test_chunks_may_cut_through_a_point(light: Observation) -> None:
    sweep = Sweep(short("inverting"), grid("inverting"))
    whole, parts = (sweep.reconstruct(light, chunk=chunk).x for chunk in (9, 2))
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["inverting", "idlg"])
def test_goes_on_after_a_kill(
    name: str, light: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_BLOCK", 2)
    monkeypatch.setattr(checkpoint, "_SAVE", 0.0)
    sweep, state = Sweep(short(name), grid(name)), tmp_path / "state.safetensors"
    whole = sweep.reconstruct(light, chunk=4)
    calls = 0

    def kill(done: int, of: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.reconstruct(light, chunk=4, resume=state, on_progress=kill)
    rest = sweep.reconstruct(light, chunk=4, resume=state, on_progress=kill)
    assert torch.equal(rest.x, whole.x)
    other = Sweep(short(name), [*grid(name)[:-1], {"lr": 0.5}])
    with pytest.raises(DataError, match="differs in points; nothing was overwritten"):
        other.reconstruct(light, chunk=4, resume=state)


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        (QUICK["inverting"], ("total_variation", "lr")),
        (GradInversion(), ("total_variation", "lr")),
        (QUICK["idlg"], ("lr",)),
        (GGL(generator=PAINTER), ("lr",)),
    ],
)
def test_what_can_be_tuned(attack: Attack, settings: tuple[str, ...]) -> None:
    assert tunable(attack) == settings


@pytest.mark.parametrize(
    ("name", "points", "told"),
    [
        ("inverting", [], "points: none, expected one or more"),
        ("inverting", [{"iterations": 5}], "points: iterations of inverting, expected total_variation or lr"),
        ("idlg", [{"total_variation": 1.0}], "points: total_variation of idlg, expected lr"),
        ("inverting", [{"lr": -1.0}], r"lr = -1.0: expected a number in \(0, ∞\)"),
        ("inverting", [{"total_variation": "a"}], "total variation = 'a': expected a number"),
    ],
)
def test_wrong_points(name: str, points: list[Mapping[str, float]], told: str) -> None:
    with pytest.raises((SettingError, DataError), match=told):
        Sweep(short(name), points)


def test_a_step_of_each_victim_has_its_own_length() -> None:
    """A first step of L-BFGS goes along the slope, as far as it is told."""

    def plane(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(1), torch.ones_like(x)

    x, optimizer = torch.zeros(2, 4), LBFGS()
    moved, _ = optimizer.step(x, optimizer.init(x, plane), plane, lr_scale=torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(moved[0], 10 * moved[1])
