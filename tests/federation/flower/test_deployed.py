"""The library's app on real processes: equal to one machine, and what crosses the border."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

from refiner import Task
from refiner.errors import RefinerError
from refiner.federation import Experiment, Training, run_experiment
from refiner.federation.flower.client import protected_move
from refiner.federation.flower.messages import Order
from refiner.federation.flower.study import rules_of, write_app, write_clients
from refiner.federation.local import get_parameters
from refiner.federation.schedule import derived
from refiner.models import build

pytestmark = pytest.mark.flower

EXPERIMENT = Experiment(
    data="sample", evaluate_every=5, training=Training(rounds=5, clients=2, batch=8, lr=0.1, seed=7)
)
EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"
CLIENTS = ("plain", "protected", "with_mod")
OWN = Path(__file__).parent / "own_server.py"


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "weights.safetensors")


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def captured(sent: bytes) -> list[Tensor]:
    """Every array that crossed, from the bytes on the wire."""
    arrays = []
    for found in re.finditer(b"\x93NUMPY", sent):
        try:
            arrays.append(torch.from_numpy(np.load(io.BytesIO(sent[found.start() :]), allow_pickle=False)))
        except ValueError:
            continue
    return arrays


def raw_upload(home: Path, training: Training, folder: Path) -> dict[str, Tensor]:
    """What the client of `home` would send in the first round, of the same samples, without a defence."""
    folder.mkdir()
    own = json.loads((home / "client.json").read_text())
    (folder / "client.json").write_text(json.dumps(own | {"defense": "none"}))
    (folder / "secret").write_bytes((home / "secret").read_bytes())
    (folder / "secret").chmod(0o600)
    torch.manual_seed(derived(0, "model"))
    task = Task(build("lenet"), example=torch.zeros(1, 3, 32, 32))
    order = Order(1, "lenet", 10, training.batch, training.local_steps, training.lr)
    asked = order.content(get_parameters(task), task.shapes)
    answered = protected_move(order, asked, folder)["arrays"]
    assert isinstance(answered, ArrayRecord)
    return dict(answered.to_torch_state_dict())


def nearest(wanted: Tensor, arrays: list[Tensor]) -> float:
    """The greatest cosine of `wanted` with one that crossed: of no matter which scale."""
    same = [array for array in arrays if array.shape == wanted.shape]
    return max((abs(float(cosine_similarity(wanted.flatten(), a.flatten(), 0))) for a in same), default=0.0)


@pytest.fixture(scope="module")
def examples(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """Each client of the example: its run, and where it leaves weights. All at once: most is waiting."""
    runs = {}
    for client in CLIENTS:
        folder = tmp_path_factory.mktemp(client)
        app = folder / "adopt"
        app.mkdir()
        for path in (EXAMPLES / "adopt").glob("*.*"):
            text = path.read_text().replace('clientapp = "protected:app"', f'clientapp = "{client}:app"')
            text = text.replace("rounds = 3", "rounds = 1").replace("/tmp/weights", f"{folder}/weights")
            (app / path.name).write_text(text)
        runs[client] = shared.deployment.submit(app), folder / "weights.safetensors"
    return runs


@pytest.mark.parametrize("defense", ["none", "pruning:rate=0.8"])
def test_equal_to_the_local_engine(defense: str, shared: Any, tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, defense=defense)
    run_experiment(experiment, tmp_path / "local")
    stopped = defense != "none"
    if stopped:  # what is resumed goes on where it was
        shorter = replace(experiment, training=replace(experiment.training, rounds=3))
        shared.train(shorter, tmp_path / "flower")
    shared.train(experiment, tmp_path / "flower", resume=stopped)
    one, other = weights(tmp_path / "local"), weights(tmp_path / "flower")
    assert one.keys() == other.keys()
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-6
    assert [line["used"] for line in rounds_of(tmp_path / "flower")] == [2] * 5
    curves = [
        json.loads((tmp_path / name / "outcome.json").read_text())["curve"] for name in ("local", "flower")
    ]
    assert curves[1][-1] == curves[0][-1]


def test_in_a_server_app_of_ones_own(shared: Any, tmp_path: Path) -> None:
    """Flower drives the strategy, with the library's clients: the weights are those of the local engine."""
    training = replace(EXPERIMENT.training, rounds=3)
    experiment = replace(EXPERIMENT, defense="pruning:rate=0.8", training=training)
    run_experiment(experiment, tmp_path / "local")
    write_clients(experiment, shared.homes)
    left = tmp_path / "weights.safetensors"
    app = write_app(tmp_path / "app", rules_of(experiment, left), server="own_server:app")
    (app / "own_server.py").write_text(OWN.read_text())
    said = shared.said_by(shared.deployment.submit(app), left)
    assert "Starting MeanMove strategy" in said and said.count("2 of 2 answers used") == 3
    one, other = weights(tmp_path / "local"), load_file(left)
    assert one.keys() == other.keys()
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-6


def test_neither_raw_gradient_nor_secret_crosses(shared: Any, tmp_path: Path) -> None:
    """A client without a study's seed: its noise depends on a secret that lies with it."""
    training = Training(rounds=1, clients=2, batch=8, lr=0.1, seed=None)
    home, uploads = shared.homes[0], {}
    for defense in ("none", "refiner:iterations=3,warm_start=true"):
        shared.tap.sent.clear()
        shared.train(replace(EXPERIMENT, defense=defense, training=training), tmp_path / defense[:4])
        uploads[defense] = bytes(shared.tap.sent)
    bare, refined = uploads.values()
    raw = raw_upload(home, training, tmp_path / "raw")
    # The positive control: undefended it is on the wire, layer by layer.
    assert all(nearest(move, captured(bare)) > 0.99999 for move in raw.values())
    assert len(captured(refined)) >= len(raw)
    for name, move in raw.items():
        if name.endswith("weight"):
            assert nearest(move, captured(refined)) < 0.99, name
        assert move.numpy().tobytes() not in refined
    secret, memory = (home / "secret").read_bytes(), load_file(home / "memory.safetensors")
    assert len(secret) == 32 and secret != (shared.homes[1] / "secret").read_bytes()
    assert all((home / name).stat().st_mode & 0o077 == 0 for name in ("secret", "memory.safetensors"))
    for form in (secret[:16], secret[16:], secret.hex().encode(), str(home).encode()):
        assert form not in bare and form not in refined
    robust = [value for value in memory.values() if value.is_floating_point()]
    assert robust and all(value[0].numpy().tobytes() not in refined for value in robust)


@pytest.mark.usefixtures("examples")  # they run meanwhile
def test_no_good_answer_is_an_error(shared: Any, tmp_path: Path) -> None:
    refusing = replace(EXPERIMENT, defense="refiner:input_range=(0,0.5)")
    told = "round 1: 0 of 2 nodes gave a good answer, at least 1 must"
    with pytest.raises(RefinerError, match=f"^{told}.*DataError; its own log says why"):
        shared.train(refusing, tmp_path)
    assert not (tmp_path / "outcome.json").exists()


@pytest.mark.parametrize("client", CLIENTS)
def test_the_examples_run(client: str, shared: Any, examples: dict[str, tuple[str, Path]]) -> None:
    run, left = examples[client]
    assert "Received 2 results and 0 failures" in shared.said_by(run, left)
    found = load_file(left)
    assert len(found) == 6 and all(bool(value.isfinite().all()) for value in found.values())
