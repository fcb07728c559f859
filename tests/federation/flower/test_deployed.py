"""The library's app with real processes: equal to the local engine, and what is sent over the network."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

from refiner import Task
from refiner.errors import RefinerError
from refiner.federation import Experiment, FederatedSettings, run_experiment
from refiner.federation.flower.app_files import run_config_for, write_app, write_clients
from refiner.federation.flower.client import make_update
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.messages import TrainInstructions, to_arrays
from refiner.federation.local import get_parameters
from refiner.federation.schedule import derive_seed
from refiner.models import make_model

pytestmark = pytest.mark.flower

EXPERIMENT = Experiment(
    data="sample", evaluate_every=5, training=FederatedSettings(rounds=5, clients=2, batch=8, lr=0.1, seed=7)
)
EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"
CUSTOM_SERVER = Path(__file__).parent / "custom_server.py"


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "weights.safetensors")


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def sent_arrays(sent: bytes) -> list[Tensor]:
    """Every array in the bytes that a node sent."""
    arrays = []
    for header in re.finditer(b"\x93NUMPY", sent):
        try:
            array = np.load(io.BytesIO(sent[header.start() :]), allow_pickle=False)
        except ValueError:
            continue
        arrays.append(torch.from_numpy(array))
    return arrays


def undefended_upload(client: Path, settings: FederatedSettings, folder: Path, run: int) -> dict[str, Tensor]:
    """The upload of a client in the first round of a run, for the same samples, without a defence."""
    folder.mkdir()
    client_json = json.loads((client / "client.json").read_text())
    (folder / "client.json").write_text(json.dumps(client_json | {"defense": "none"}))
    (folder / "secret").write_bytes((client / "secret").read_bytes())
    (folder / "secret").chmod(0o600)
    torch.manual_seed(derive_seed(0, "model"))
    task = Task(make_model("lenet"), example=torch.zeros(1, 3, 32, 32))
    instructions = TrainInstructions(1, "lenet", 10, settings.batch, settings.local_steps, settings.lr)
    content = instructions.content(get_parameters(task), task.shapes)
    update, shapes, _ = make_update(instructions, content, folder, ClientSettings.read(folder), run)
    return dict(to_arrays(update, shapes).to_torch_state_dict())


def largest_cosine(expected: Tensor, arrays: list[Tensor]) -> float:
    """The largest absolute cosine similarity of `expected` with an array that was sent."""
    same_shape = [array for array in arrays if array.shape == expected.shape]
    cosines = (cosine_similarity(expected.flatten(), array.flatten(), 0) for array in same_shape)
    return max((abs(float(cosine)) for cosine in cosines), default=0.0)


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("defense", ["none", "pruning:rate=0.8"])
def test_the_weights_equal_those_of_the_local_engine(defense: str, shared: Any, tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, defense=defense)
    run_experiment(experiment, tmp_path / "local")
    resume = defense != "none"
    if resume:  # the second half of the rounds resumes the first
        shorter = replace(experiment, training=replace(experiment.training, rounds=3))
        shared.train(shorter, tmp_path / "flower")
    shared.train(experiment, tmp_path / "flower", resume=resume)
    assert largest_difference(weights(tmp_path / "local"), weights(tmp_path / "flower")) < 1e-6
    assert [line["used"] for line in rounds_in(tmp_path / "flower")] == [2] * 5
    curves = [
        json.loads((tmp_path / name / "outcome.json").read_text())["curve"] for name in ("local", "flower")
    ]
    assert curves[1][-1] == curves[0][-1]


def test_the_strategy_works_in_a_custom_server_app(shared: Any, tmp_path: Path) -> None:
    """Flower runs the strategy with the library's clients; the weights equal those of the local engine."""
    settings = replace(EXPERIMENT.training, rounds=3)
    experiment = replace(EXPERIMENT, defense="pruning:rate=0.8", training=settings)
    run_experiment(experiment, tmp_path / "local")
    write_clients(experiment, shared.client_folders)
    weights_file = tmp_path / "weights.safetensors"
    config = run_config_for(experiment, weights_file)
    app = write_app(tmp_path / "app", config, server="custom_server:app")
    (app / "custom_server.py").write_text(CUSTOM_SERVER.read_text())
    log = shared.completed_log(shared.deployment.submit(app), weights_file)
    assert "Starting MeanUpdate strategy" in log and log.count("2 of 2 replies used") == 3
    assert largest_difference(weights(tmp_path / "local"), load_file(weights_file)) < 1e-6


def test_neither_the_undefended_gradient_nor_the_secret_is_sent(shared: Any, tmp_path: Path) -> None:
    """For clients without a seed, whose noise depends on a secret in their folder."""
    settings = FederatedSettings(rounds=1, clients=2, batch=8, lr=0.1, seed=None)
    client, sent, uploads = shared.client_folders[0], [], []
    for defense in ("none", "refiner:iterations=3,search=always"):
        shared.relay.sent.clear()
        out = tmp_path / defense[:4]
        run = shared.train(replace(EXPERIMENT, defense=defense, training=settings), out)
        sent.append(bytes(shared.relay.sent))
        uploads.append(undefended_upload(client, settings, out / "undefended", run))
    (undefended, refined), (control, upload) = sent, uploads
    # Positive control: without a defence every layer is found.
    assert all(largest_cosine(layer, sent_arrays(undefended)) > 0.99999 for layer in control.values())
    assert len(sent_arrays(refined)) >= len(upload)
    for name, layer in upload.items():
        if name.endswith("weight"):
            assert largest_cosine(layer, sent_arrays(refined)) < 0.99, name
        assert layer.numpy().tobytes() not in refined
    secret, state = (client / "secret").read_bytes(), load_file(client / "memory.safetensors")
    assert len(secret) == 32 and secret != (shared.client_folders[1] / "secret").read_bytes()
    assert all((client / name).stat().st_mode & 0o077 == 0 for name in ("secret", "memory.safetensors"))
    for text in (secret[:16], secret[16:], secret.hex().encode(), str(client).encode()):
        assert text not in undefended and text not in refined
    robust = [value for value in state.values() if value.is_floating_point()]
    assert robust and all(value[0].numpy().tobytes() not in refined for value in robust)


def test_a_round_without_a_valid_reply_is_an_error(shared: Any, tmp_path: Path) -> None:
    failing = replace(EXPERIMENT, defense="refiner:input_range=(0,0.5)")
    message = "round 1: 0 of 2 nodes sent a valid reply, at least 1 are needed"
    with pytest.raises(RefinerError, match=f"^{message}.*the client sent nothing; see the client's log"):
        shared.train(failing, tmp_path)
    assert not (tmp_path / "outcome.json").exists()


@pytest.mark.parametrize("client", ["plain", "protected", "with_mod"])
def test_the_example_runs(client: str, shared: Any, tmp_path: Path) -> None:
    app, weights_file = tmp_path / "adopt", tmp_path / "weights.safetensors"
    app.mkdir()
    for path in (EXAMPLES / "adopt").glob("*.*"):
        text = path.read_text().replace('clientapp = "protected:app"', f'clientapp = "{client}:app"')
        text = text.replace("rounds = 3", "rounds = 1").replace("/tmp/weights", f"{tmp_path}/weights")
        (app / path.name).write_text(text)
    log = shared.completed_log(shared.deployment.submit(app), weights_file)
    assert "Received 2 results and 0 failures" in log, log
    trained = load_file(weights_file)
    assert len(trained) == 6 and all(bool(value.isfinite().all()) for value in trained.values())
