"""Secure aggregation with real processes: weights, the bytes that are sent, and killed clients."""

import io
import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from refiner import Task
from refiner.core.flat_parameters import get_parameters
from refiner.federation import CheckpointConfig, Experiment, FederatedSettings
from refiner.federation.flower.aggregation import Secure, make_aggregation
from refiner.federation.flower.client import make_update
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.engine import follow_run
from refiner.federation.flower.messages import TrainInstructions
from refiner.federation.local import weighted_mean
from refiner.federation.schedule import derive_seed
from refiner.models import make_model

pytestmark = pytest.mark.flower

SETTINGS = FederatedSettings(rounds=3, clients=3, batch=8, lr=0.1, seed=7)
AGGREGATION = "secure:threshold=2,minimum=2"
# Seconds of a step; below 60, after which Flower itself reports a killed node.
DEADLINE = 50.0


def wait_until(condition: Callable[[], bool], timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not true within {timeout} s"
        time.sleep(0.2)


def last_step(folder: Path) -> str:
    return (folder / "step").read_text() if (folder / "step").exists() else ""


def unmasked_update(folder: Path, round: int, parameters: Tensor, task: Task) -> tuple[Tensor, int]:
    """The update that the client of `folder` would send without masks, and its number of samples."""
    instructions = TrainInstructions(round, "lenet", 10, SETTINGS.batch, SETTINGS.local_steps, SETTINGS.lr)
    content = instructions.content(parameters, task.shapes)
    update, _, samples = make_update(instructions, content, folder, ClientSettings.read(folder), run=0)
    return update, samples


def sent_arrays(sent: bytes) -> list[NDArray[Any]]:
    """Every array in the bytes that a node sent."""
    arrays = []
    for start in re.finditer(b"\x93NUMPY", sent):
        try:
            arrays.append(np.load(io.BytesIO(sent[start.start() :]), allow_pickle=False))
        except ValueError:
            continue
    return arrays


def max_correlation(update: Tensor, sent: bytes, samples: int, task: Task) -> float:
    """The largest correlation of a client's update, or one of its layers, with an array that was sent, as
    floats or as 8-byte integers; 1 if its bytes were sent."""
    aggregation = make_aggregation(AGGREGATION)
    assert isinstance(aggregation, Secure)
    encoded = aggregation.encoding.encode(update, samples)
    if update[:256].numpy().tobytes() in sent or encoded[:256].tobytes() in sent:
        return 1.0
    sizes = [shape.numel() for shape in task.shapes.values()]
    layers = [layer.double().numpy() for layer in (update, *torch.split(update, sizes)) if len(layer) > 500]
    largest = 0.0
    for array in sent_arrays(sent):
        flat = array.ravel()
        if flat.dtype == np.uint8 and flat.size == 8 * (len(update) + 1):
            flat = flat.view("<i8")[:-1]
        same_size = [layer for layer in layers if layer.size == flat.size]
        correlations = [abs(float(np.corrcoef(layer, flat)[0, 1])) for layer in same_size]
        largest = max([largest, *correlations])
    return largest


@pytest.mark.hostile
def test_killed_and_hostile_clients_do_not_change_the_sum_and_no_update_is_sent_unmasked(
    one_of_three: Any, tmp_path: Path
) -> None:
    """Round 1: a client is killed before it masks. Round 2: it takes part after a restart; another is killed
    after its masked update has arrived, which is in the sum all the same. Round 3: a client sends random
    bytes instead of its masked update; the round changes nothing, and the training goes on."""
    folders, deployment, relay = one_of_three.client_folders, one_of_three.deployment, one_of_three.relay
    experiment = Experiment(data="sample", training=SETTINGS)
    plain = replace(experiment, training=replace(SETTINGS, rounds=1))
    # The positive control needs only the first client; the others start in the meantime.
    run = one_of_three.submit(plain, tmp_path / "plain", initial_nodes=1, deadline=DEADLINE)
    wait_until((folders[0] / "asked").exists)
    for folder in folders[1:]:
        deployment.add_node(folder)
    follow_run(deployment, run, CheckpointConfig(tmp_path / "plain"))
    sent_plain = bytes(relay.sent)
    relay.sent.clear()

    out = tmp_path / "out"
    (folders[0] / "fault").write_text("spoil 3 mask")
    (folders[2] / "fault").write_text("stop before 1 mask")
    run = one_of_three.submit(experiment, out, aggregation=AGGREGATION, deadline=DEADLINE)
    wait_until(lambda: last_step(folders[2]) == "1 mask")
    os.kill(deployment.nodes[2].pid, signal.SIGKILL)
    (folders[2] / "fault").unlink()
    (folders[1] / "fault").write_text("stop before 2 confirm")
    deployment.add_node(folders[2])
    wait_until(lambda: last_step(folders[1]) == "2 confirm")
    os.kill(deployment.nodes[1].pid, signal.SIGKILL)
    follow_run(deployment, run, CheckpointConfig(out))
    sent_masked = bytes(relay.sent)
    first, second, third = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert (first["asked"], first["used"]) == (3, 2)
    # Flower notices up to a minute after a last heartbeat that a node is dead: before or after the deadline.
    (reason,) = first["rejected"].values()
    assert reason == "no reply within 50 s" or "Node Unavailable" in reason
    assert (second["asked"], second["used"], len(second["rejected"])) == (3, 3, 1)
    assert (third["used"], third["banned"]) == (0, []) and "beyond the clients' bounds" in third["spoiled"]

    torch.manual_seed(derive_seed(SETTINGS.seed or 0, "model"))
    task = Task(make_model("lenet"), example=torch.zeros(1, 3, 32, 32))
    parameters, first_client = get_parameters(task), []
    for round, clients in ((1, (0, 1)), (2, (0, 1, 2))):
        results = [unmasked_update(folders[client], round, parameters, task) for client in clients]
        first_client.append(results[0])
        updates, samples = zip(*results, strict=True)
        parameters = parameters - weighted_mean(torch.stack(updates), samples)
    weights = load_file(out / "weights.safetensors")
    trained = torch.cat([weights[name].flatten() for name in task.shapes])
    assert float((trained - parameters).abs().max()) < 1e-6
    assert float((parameters - get_parameters(task)).abs().max()) > 1e-3

    # Positive control: with plain aggregation the first client's update is found.
    assert max_correlation(first_client[0][0], sent_plain, first_client[0][1], task) > 0.99999
    masked_size = 8 * (len(parameters) + 1)
    assert any(a.dtype == np.uint8 and a.size == masked_size for a in sent_arrays(sent_masked))
    for update, count in first_client:
        assert max_correlation(update, sent_masked, count, task) < 0.1
    for secret in ("identity", "aggregation.json"):
        assert (folders[0] / secret).stat().st_mode & 0o077 == 0
    key = (folders[0] / "identity").read_bytes()
    assert key not in sent_masked and key.hex().encode() not in sent_masked
