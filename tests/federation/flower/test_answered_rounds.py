"""The record of a client's answers: rounds only increase, and a run keeps its settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refiner.errors import DataError
from refiner.federation.flower.answered_rounds import begin_round
from refiner.federation.flower.messages import RefusedRequest, TrainInstructions
from refiner.files import locked

pytestmark = pytest.mark.hostile

FIRST = TrainInstructions(round=1, model="lenet", classes=10, batch=16, local_steps=1, lr=0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch": 1}, "batch = 1: this client accepts 16 in this run, as in its first round"),
        ({"local_steps": 2}, "local_steps = 2: this client accepts 1 in this run, as in its first round"),
        ({"model": "mlp"}, "model = 'mlp': this client accepts 'lenet' in this run, as in its first round"),
    ],
)
def test_a_run_keeps_the_settings_of_its_first_answered_request(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    begin_round(tmp_path, 1, FIRST)
    other = replace(FIRST, round=1001, **change)
    with pytest.raises(RefusedRequest) as refusal:
        begin_round(tmp_path, 1, other)
    assert str(refusal.value) == reason
    # The refused request is not remembered, the learning rate may change, and another run has its own.
    begin_round(tmp_path, 1, replace(FIRST, round=2, lr=0.2))
    begin_round(tmp_path, 2, other)
    with pytest.raises(RefusedRequest, match="in this run, as in its first round"):
        begin_round(tmp_path, 2, replace(FIRST, round=1002))


def test_the_record_is_on_the_disk_readable_by_its_owner_only(tmp_path: Path) -> None:
    begin_round(tmp_path, 7, FIRST)
    begin_round(tmp_path, 7, replace(FIRST, round=5))
    path = tmp_path / "answered.json"
    kept = {"round": 5, "model": "lenet", "batch": 16, "local_steps": 1}
    assert json.loads(path.read_text()) == {"7": kept}
    assert path.stat().st_mode & 0o077 == 0
    with locked(tmp_path, ValueError()), pytest.raises(RefusedRequest, match="answering another request"):
        begin_round(tmp_path, 7, replace(FIRST, round=6))


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"1": 3}',
        '{"1": {"round": 3}}',
        '{"1": {"round": 0, "model": "lenet", "batch": 16, "local_steps": 1}}',
        '{"1": {"round": 1, "model": "lenet", "batch": "16", "local_steps": 1}}',
        '{"1": {"round": 1, "model": null, "batch": 16, "local_steps": 1}}',
        '{"1": {"round": 1, "model": "lenet", "batch": 16, "local_steps": 1, "lr": 1}}',
    ],
)
def test_a_damaged_record_is_never_replaced(content: str, tmp_path: Path) -> None:
    path = tmp_path / "answered.json"
    path.write_text(content)
    with pytest.raises(
        DataError, match=r"answered\.json: expected .*; delete it when no training is running"
    ):
        begin_round(tmp_path, 1, replace(FIRST, round=9))
    assert path.read_text() == content
