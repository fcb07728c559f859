"""Nodes that are broken, slow, killed or late, as real processes: each is named, and the others go on."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from refiner.federation import Experiment, Keeping, Training
from refiner.federation.flower.study import follow

pytestmark = pytest.mark.flower

TRAINING = Training(rounds=3, clients=5, batch=8, lr=0.1)
DEADLINE = 45.0


def until(true: Callable[[], bool], patience: float = 120) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, "it never came to it"
        time.sleep(0.2)


def test_the_others_go_on(faulty: Any, tmp_path: Path) -> None:
    """Round 1: NaN, a wrong shape, a missing name. 2: a slow node, a defence that fails, a killed node.
    3: a wrong count, and a node that joined late; the slow one is not waited for again."""
    out, homes, deployment = tmp_path / "out", faulty.homes, faulty.deployment
    for home, fault in zip(homes[1:], ("nan", "shape", "name"), strict=True):
        (home / "fault").write_text(fault)
    # One of five clients has not joined yet, and the run does not wait for it.
    faulty.homes = [*homes, faulty.folder / "client-4"]
    run = faulty.submit(Experiment(data="sample", training=TRAINING), out, start_with=4, deadline=DEADLINE)

    def rounds() -> list[dict[str, Any]]:
        path = out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    until(lambda: len(rounds()) == 1)
    (homes[1] / "fault").write_text("slow")
    (homes[2] / "fault").unlink()
    own = (homes[2] / "client.json").read_text()
    # The images lie outside of what it is told to expect, so that it refuses them.
    refusing = json.loads(own) | {"defense": "refiner:input_range=(0,0.5)"}
    (homes[2] / "client.json").write_text(json.dumps(refusing))
    (homes[3] / "fault").write_text("slow")
    until(lambda: (homes[3] / "asked").read_text() == "2")
    os.kill(deployment.nodes[3].pid, signal.SIGKILL)
    late = deployment.add_node(faulty.homes[4])
    until(lambda: len(rounds()) == 2)
    (homes[2] / "client.json").write_text(own)
    (homes[2] / "fault").write_text("count")
    follow(deployment, run, out, Keeping(out))
    assert late.code() is None
    first, second, third = rounds()
    assert (first["asked"], first["used"]) == (4, 1)
    assert sorted(first["rejected"].values()) == [
        "head.weight: float32 [10, 767], expected float32 [10, 768]",
        "head.weight: holds NaN or infinity",
        "head.weight: missing",
    ]
    assert (second["asked"], second["used"]) == (4, 1)
    assert sorted(second["rejected"].values()) == [
        "error 100: the client sent nothing (DataError; its own log says why)",
        "no answer within 45 s",
        "no answer within 45 s",
    ]
    assert "x lies in" in deployment.nodes[2].log(10**6)
    assert (third["asked"], third["used"]) == (3, 2)
    assert [*third["rejected"].values()] == ["num-examples = 1000000000: expected an integer in [1, 8]"]
    assert third["seconds"] < DEADLINE
    # The same node in all three: its answers were named by its own id.
    assert len({*first["rejected"]} & {*second["rejected"]} & {*third["rejected"]}) == 1
    assert all(bool(value.isfinite().all()) for value in load_file(out / "weights.safetensors").values())
