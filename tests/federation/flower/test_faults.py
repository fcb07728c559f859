"""Broken, slow, killed and late nodes, as real processes: each is named, and the others continue."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from refiner.federation import CheckpointConfig, Experiment, FederatedSettings
from refiner.federation.flower.engine import follow_run

pytestmark = pytest.mark.flower

SETTINGS = FederatedSettings(rounds=3, clients=5, batch=8, lr=0.1)
DEADLINE = 45.0


def wait_until(condition: Callable[[], bool], timeout: float = 120) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not true within {timeout} s"
        time.sleep(0.2)


def test_a_round_continues_without_faulty_nodes(faulty: Any, tmp_path: Path) -> None:
    """Round 1: NaN, a wrong shape, a missing name. 2: a slow node, a failing defence, a killed node.
    3: a wrong count, and a node that joined late; the slow one is not waited for again."""
    out, folders, deployment = tmp_path / "out", faulty.client_folders, faulty.deployment
    for folder, fault in zip(folders[1:], ("nan", "shape", "name"), strict=True):
        (folder / "fault").write_text(fault)
    # One of the five clients has not joined yet, and the run does not wait for it.
    faulty.client_folders = [*folders, faulty.folder / "client-4"]
    experiment = Experiment(data="sample", training=SETTINGS)
    run = faulty.submit(experiment, out, initial_nodes=4, deadline=DEADLINE)

    def rounds() -> list[dict[str, Any]]:
        path = out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    wait_until(lambda: len(rounds()) == 1)
    (folders[1] / "fault").write_text("slow")
    (folders[2] / "fault").unlink()
    client_json = (folders[2] / "client.json").read_text()
    # The images lie outside the input range of the defence, so it raises.
    failing = json.loads(client_json) | {"defense": "refiner:input_range=(0,0.5)"}
    (folders[2] / "client.json").write_text(json.dumps(failing))
    (folders[3] / "fault").write_text("slow")
    wait_until(lambda: (folders[3] / "asked").read_text() == "2")
    os.kill(deployment.nodes[3].pid, signal.SIGKILL)
    late = deployment.add_node(faulty.client_folders[4])
    wait_until(lambda: len(rounds()) == 2)
    (folders[2] / "client.json").write_text(client_json)
    (folders[2] / "fault").write_text("count")
    follow_run(deployment, run, CheckpointConfig(out))
    assert late.exit_code() is None
    first, second, third = rounds()
    assert (first["asked"], first["used"]) == (4, 1)
    assert sorted(first["rejected"].values()) == [
        "head.weight: contains NaN or infinity",
        "head.weight: float32 [10, 767], expected float32 [10, 768]",
        "head.weight: missing",
    ]
    assert (second["asked"], second["used"]) == (4, 1)
    assert sorted(second["rejected"].values()) == [
        "error 100: the client sent nothing; see the client's log",
        "no reply within 45 s",
        "no reply within 45 s",
    ]
    assert "refiner: DataError: " in deployment.nodes[2].log(10**6)
    assert (third["asked"], third["used"]) == (3, 2)
    assert [*third["rejected"].values()] == ["num-examples = 1000000000: expected an integer in [1, 8]"]
    assert third["seconds"] < DEADLINE
    # The same node in all three rounds: replies are attributed by the node's own id.
    assert len({*first["rejected"]} & {*second["rejected"]} & {*third["rejected"]}) == 1
    assert all(bool(value.isfinite().all()) for value in load_file(out / "weights.safetensors").values())
