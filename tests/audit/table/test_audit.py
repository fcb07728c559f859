"""Audits of tabular data, on 569 patients with 30 measurements (Wisconsin Diagnostic Breast Cancer)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import refiner
from refiner.audit import audit_table
from refiner.core import Task
from refiner.errors import DataError
from refiner.metrics import Share

FILE = Path(__file__).parents[3] / "examples" / "breast_cancer.csv"


def patients() -> tuple[Tensor, Tensor]:
    table = torch.from_numpy(np.loadtxt(FILE, delimiter=",", skiprows=2, dtype=np.float32))
    low, high = table[:, :-1].aminmax(dim=0)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    return ((table[:, :-1] - low) / (high - low))[order], table[order, -1].long()


def network(width: int, classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))


X, Y = patients()
PUBLIC = (X[50:], Y[50:])
TASK = Task(network(30, 2), example=X[:2])
NAMES = FILE.read_text().splitlines()[1].split(",")[:-1]


@pytest.mark.parametrize("attack", ["analytic", "linear", "idlg:iterations=60"])
def test_undefended_rows_are_revealed(attack: str) -> None:
    result = audit_table(TASK, X[:8], Y[:8], public=PUBLIC, defense="none", attack=attack, features=NAMES)
    assert result.level == "revealed" and result.error.value < 0.05
    assert result.undefended_error == result.error.value
    torch.testing.assert_close(result.reconstruction, result.original, atol=0.05, rtol=0)
    assert [feature.name for feature in result.features] == list(NAMES)


def test_noise_hides_them() -> None:
    result = audit_table(
        TASK, X[:20], Y[:20], public=PUBLIC, defense="dp-gaussian:magnitude=1,clip=none", attack="linear"
    )
    assert result.level in ("neither", "identifiable") and result.error.value > 0.8
    assert result.undefended_error < 0.05
    assert "of a blind guess's (undefended 0.0" in result.sentence


def test_one_row_of_twenty_may_be_chance() -> None:
    hidden = audit_table(
        TASK, X[:20], Y[:20], public=PUBLIC, defense="dp-gaussian:magnitude=1e3,clip=none", attack="linear"
    )
    levels = [replace(hidden, identified=Share.of(n, 20), candidates=220).level for n in (0, 1, 2)]
    assert levels == ["neither", "neither", "identifiable"]


def test_errors_are_those_of_the_definition() -> None:
    result = audit_table(TASK, X[:9], Y[:9], public=PUBLIC, defense="pruning:rate=0.9", attack="linear")
    mean, scale = PUBLIC[0].mean(0), PUBLIC[0].std(0)
    error = result.reconstruction - X[:9]
    for i, feature in enumerate(result.features):
        assert feature.rmse == pytest.approx(float(error[:, i].square().mean().sqrt()), rel=1e-5)
        assert feature.blind_rmse == pytest.approx(
            float((X[:9, i] - mean[i]).square().mean().sqrt()), rel=1e-5
        )
    rows = (error / scale).norm(dim=1) / ((X[:9] - mean) / scale).norm(dim=1)
    assert result.error.value == pytest.approx(float(rows.mean()), rel=1e-5)
    assert result.worst(1)[0].relative == min(feature.relative for feature in result.features)


@pytest.mark.processes
def test_batches_are_put_in_order() -> None:
    batches, labels = X[:4].view(2, 2, 30), torch.tensor([[0, 1], [1, 0]])
    result = audit_table(TASK, batches, labels, public=PUBLIC, defense="none", attack="idlg:iterations=300")
    assert (result.clients, result.batch) == (2, 2)
    # Any other order of a batch would have a larger error.
    flipped = (result.reconstruction.view(2, 2, 30).flip(1) - batches).square().sum()
    assert (result.reconstruction - X[:4]).square().sum() <= flipped


def test_there_is_no_verdict_where_the_attack_fails_without_a_defence() -> None:
    result = audit_table(
        TASK, X[:8], Y[:8], public=PUBLIC, defense="pruning", attack="inverting:iterations=1,lr=1e-9"
    )
    assert result.level == "no verdict"


def test_a_control_is_not_computed_again() -> None:
    settings: dict[str, Any] = {"public": PUBLIC, "attack": "linear"}
    control = audit_table(TASK, X[:8], Y[:8], defense="none", **settings)
    whole = audit_table(TASK, X[:8], Y[:8], defense="pruning", **settings)
    shared = audit_table(TASK, X[:8], Y[:8], defense="pruning", control=control, **settings)
    assert shared.record() == whole.record() and shared.undefended_error == control.error.value
    for other in (whole, audit_table(TASK, X[8:16], Y[8:16], defense="none", **settings)):
        with pytest.raises(DataError, match="the result of linear on the same rows without a defence"):
            audit_table(TASK, X[:8], Y[:8], defense="pruning", control=other, **settings)


def test_a_feature_that_is_constant_in_public_rows_does_not_count_alone() -> None:
    rows = torch.cat([X, torch.zeros(len(X), 1)], 1)
    task = Task(network(31, 2), example=rows[:2])
    result = audit_table(
        task, rows[:8], Y[:8], public=(rows[50:], Y[50:]), defense="gq:bits=8", attack="analytic"
    )
    assert result.level == "revealed" and result.error.value < 0.1


def test_rows_of_clients_are_no_public_rows() -> None:
    result = audit_table(TASK, X[:8], Y[:8], public=(X, Y), defense="none", attack="linear")
    copies = (X[:, None] == X[None, :8]).all(2).any(1).sum()
    assert result.candidates == 8 + len(X) - int(copies)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:4] * 2}, "x = .*expected floating-point rows scaled to 0..1"),
        ({"x": X[:4, :29]}, r"expected rows \[N, 30\] or \[V, B, 30\]"),
        ({"y": Y[:3]}, r"expected torch.int64 labels \[4\]"),
        ({"public": (X[:4], Y[:4])}, "public = 0: expected at least 2 rows that no client has"),
        ({"public": X}, "expected a pair: rows and their labels"),
        ({"features": ["age"]}, "features = 1: expected 30 names"),
        ({"attack": "lineal"}, "did you mean 'linear'"),
        ({"attack": "imprint"}, "attack = 'imprint': expected an attack on the client's own model"),
        ({"defense": "refiner"}, r"expected images \[C, H, W\], whose noise this is"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": X[:4], "y": Y[:4], "public": PUBLIC, "attack": "linear"} | change
    with pytest.raises(refiner.RefinerError, match=message) as error:
        audit_table(TASK, **arguments)
    assert len(str(error.value).splitlines()) == 1


def test_images_are_refused() -> None:
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), example=torch.rand(2, 3, 2, 2))
    with pytest.raises(DataError, match=r"refiner\.audit is for images"):
        audit_table(task, torch.rand(2, 12), torch.tensor([0, 1]), public=PUBLIC)
