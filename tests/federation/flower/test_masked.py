"""Secure aggregation on real processes: the same weights, what crosses, and clients killed midway."""

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
from refiner.federation import Experiment, Keeping, Training
from refiner.federation.flower.aggregation import Secure, make_aggregation
from refiner.federation.flower.client import ClientSettings, make_move
from refiner.federation.flower.messages import Order
from refiner.federation.flower.study import follow
from refiner.federation.local import get_parameters, weighted_mean
from refiner.federation.schedule import derived
from refiner.models import build

pytestmark = pytest.mark.flower

TRAINING = Training(rounds=2, clients=3, batch=8, lr=0.1, seed=7)
AGGREGATION = "secure:threshold=2,minimum=2"
# Of a step; a killed node costs one.
DEADLINE = 30.0


def until(true: Callable[[], bool], patience: float = 180) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, "it never came to it"
        time.sleep(0.2)


def step_of(home: Path) -> str:
    return (home / "step").read_text() if (home / "step").exists() else ""


def move_of(home: Path, round: int, values: Tensor, task: Task) -> tuple[Tensor, int]:
    """What the client of `home` would upload without masks."""
    order = Order(round, "lenet", 10, TRAINING.batch, TRAINING.local_steps, TRAINING.lr)
    content = order.content(values, task.shapes)
    move, _, samples = make_move(order, content, home, ClientSettings.read(home))
    return move, samples


def arrays(sent: bytes) -> list[NDArray[Any]]:
    """Every array that crossed, from the bytes on the wire."""
    found = []
    for start in re.finditer(b"\x93NUMPY", sent):
        try:
            found.append(np.load(io.BytesIO(sent[start.start() :]), allow_pickle=False))
        except ValueError:
            continue
    return found


def likeness(move: Tensor, sent: bytes, samples: int, task: Task) -> float:
    """How much anything that crossed is like a client's move, or one of its layers: the greatest correlation,
    of floats or of whole numbers of 8 bytes; 1 if its bytes are there."""
    way = make_aggregation(AGGREGATION)
    assert isinstance(way, Secure)
    whole = way.encoding.encode(move, samples)
    if move[:256].numpy().tobytes() in sent or whole[:256].tobytes() in sent:
        return 1.0
    sizes = [shape.numel() for shape in task.shapes.values()]
    wanted = [part.double().numpy() for part in (move, *torch.split(move, sizes)) if len(part) > 500]
    best = 0.0
    for array in arrays(sent):
        flat = array.ravel()
        if flat.dtype == np.uint8 and flat.size == 8 * (len(move) + 1):
            flat = flat.view("<i8")[:-1]
        same = [part for part in wanted if part.size == flat.size]
        best = max([best, *(abs(float(np.corrcoef(part, flat)[0, 1])) for part in same)])
    return best


def test_killed_clients_and_what_crosses(secured: Any, tmp_path: Path) -> None:
    """Round 1: a client is killed before it masks. 2: started anew it takes part; another is killed after its
    masked vector has arrived, which is in the sum all the same."""
    homes, deployment, tap = secured.homes, secured.deployment, secured.tap
    experiment = Experiment(data="sample", training=TRAINING)
    plain = replace(experiment, training=replace(TRAINING, rounds=1))
    # The control needs the first client alone; the others start meanwhile.
    run = secured.submit(plain, tmp_path / "plain", start_with=1, deadline=DEADLINE)
    until((homes[0] / "asked").exists)
    for home in homes[1:]:
        deployment.add_node(home)
    follow(deployment, run, tmp_path / "plain", Keeping(tmp_path / "plain"))
    bare = bytes(tap.sent)
    tap.sent.clear()

    out = tmp_path / "out"
    (homes[2] / "fault").write_text("stop before 1 mask")
    run = secured.submit(experiment, out, aggregation=AGGREGATION, deadline=DEADLINE)
    until(lambda: step_of(homes[2]) == "1 mask")
    os.kill(deployment.nodes[2].pid, signal.SIGKILL)
    (homes[2] / "fault").unlink()
    (homes[1] / "fault").write_text("stop before 2 confirm")
    deployment.add_node(homes[2])
    until(lambda: step_of(homes[1]) == "2 confirm")
    os.kill(deployment.nodes[1].pid, signal.SIGKILL)
    follow(deployment, run, out, Keeping(out))
    masked = bytes(tap.sent)
    first, second = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert (first["asked"], first["used"], [*first["rejected"].values()]) == (3, 2, ["no answer within 30 s"])
    assert (second["asked"], second["used"], len(second["rejected"])) == (3, 3, 1)

    torch.manual_seed(derived(TRAINING.seed or 0, "model"))
    task = Task(build("lenet"), example=torch.zeros(1, 3, 32, 32))
    values, own = get_parameters(task), []
    for round, clients in ((1, (0, 1)), (2, (0, 1, 2))):
        made = [move_of(homes[client], round, values, task) for client in clients]
        own.append(made[0])
        moves, sizes = zip(*made, strict=True)
        values = values - weighted_mean(torch.stack(moves), sizes)
    trained = load_file(out / "weights.safetensors")
    found = torch.cat([trained[name].flatten() for name in task.shapes])
    assert float((found - values).abs().max()) < 1e-6
    assert float((values - get_parameters(task)).abs().max()) > 1e-3

    # The control: in plain aggregation the first client's move is found.
    assert likeness(own[0][0], bare, own[0][1], task) > 0.99999
    assert any(array.dtype == np.uint8 and array.size == 8 * (len(values) + 1) for array in arrays(masked))
    for move, samples in own:
        assert likeness(move, masked, samples, task) < 0.1
    for secret in ("identity", "aggregation.json"):
        assert (homes[0] / secret).stat().st_mode & 0o077 == 0
    key = (homes[0] / "identity").read_bytes()
    assert key not in masked and key.hex().encode() not in masked
