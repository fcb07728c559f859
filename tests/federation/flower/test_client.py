"""The client app in one process: its replies, its noise, its secret, and what makes it send nothing."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from safetensors.torch import load, save

from refiner import Refiner, Task
from refiner.errors import DataError, SettingError
from refiner.federation.flower import defense_state, secret
from refiner.federation.flower.client import client_app
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.messages import TrainInstructions
from refiner.federation.local import get_parameters
from refiner.models import LeNet

INSTRUCTIONS = TrainInstructions(round=1, model="lenet", classes=10, batch=4, local_steps=1, lr=0.1)


def context_of(folder: Path | None = None, run: int = 1) -> Context:
    node_config = {} if folder is None else {"folder": str(folder)}
    return Context(run, 2, dict(node_config), RecordDict(), {})


def write_client(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    settings = {"data": "sample", "defense": "none", "clients": 2, "seed": 3} | changes
    (folder / "client.json").write_text(json.dumps(settings))
    return folder


def reply_of(folder: Path | None, content: RecordDict | None = None, run: int = 1) -> Message:
    """The reply of the client in `folder` to a request of a run."""
    torch.manual_seed(0)
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    content = content or INSTRUCTIONS.content(get_parameters(task), task.shapes)
    metadata = Metadata(run, "request", 1, 2, "", "1", 0.0, 3600.0, "train")
    return client_app()(make_message(metadata, content), context_of(folder, run))


def test_a_reply_contains_the_update_and_the_number_of_samples(tmp_path: Path) -> None:
    reply = reply_of(write_client(tmp_path))
    assert reply.content.array_records["arrays"]["head.weight"].shape == (10, 768)
    assert dict(reply.content["metrics"]) == {"num-examples": 4}
    assert sorted(reply.content) == ["arrays", "metrics"]


def test_noise_is_random_unless_the_client_has_a_seed(tmp_path: Path) -> None:
    def weight_sent(folder: Path) -> np.ndarray:
        (folder / "answered.json").unlink(missing_ok=True)
        return reply_of(folder).content.array_records["arrays"]["head.weight"].numpy()

    noisy = "dp-gaussian:magnitude=0.1"
    random = write_client(tmp_path / "random", defense=noisy, seed=None)
    seeded = write_client(tmp_path / "seeded", defense=noisy)
    assert not np.array_equal(weight_sent(random), weight_sent(random))
    assert np.array_equal(weight_sent(seeded), weight_sent(seeded))
    # Refiner's noise depends on the secret: the same for every upload of an image, different between clients.
    refined = {"defense": "refiner:iterations=1", "seed": None, "clients": 1}
    one, two = (write_client(tmp_path / name, **refined) for name in ("one", "two"))
    assert np.array_equal(weight_sent(one), weight_sent(one))
    assert not np.array_equal(weight_sent(one), weight_sent(two))
    assert (one / "secret").read_bytes() != (two / "secret").read_bytes()


@pytest.mark.parametrize(
    "broken",
    [
        {"defense": "refiner:input_range=(0,0.5)"},
        {"defense": "refinr"},
        {"defense": None},
        {"data": "absent"},
        {"client": 2},
        {"more": 1},
    ],
)
def test_a_client_that_cannot_protect_its_data_sends_an_error_without_details(
    broken: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = reply_of(write_client(tmp_path, **broken))
    assert reply.has_error() and not reply.has_content()
    assert reply.error.code == 100
    # The text may contain information about the data, so it stays in the client's log.
    assert reply.error.reason == "the client sent nothing; see the client's log"
    assert "refiner: " in capfd.readouterr().err


def test_a_client_without_a_defence_or_folder_sends_an_error(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text('{"data": "sample"}')
    assert reply_of(tmp_path).has_error()
    assert reply_of(None).has_error()
    assert reply_of(tmp_path / "absent").has_error()


def test_a_server_cannot_choose_seed_data_or_defence(tmp_path: Path) -> None:
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    for field in ("seed", "defense", "data"):
        content = INSTRUCTIONS.content(get_parameters(task), task.shapes)
        content["config"] = ConfigRecord({**content.config_records["config"], field: 1})
        assert reply_of(write_client(tmp_path), content).has_error()
    not_finite = INSTRUCTIONS.content(get_parameters(task) * np.nan, task.shapes)
    assert reply_of(write_client(tmp_path), not_finite).has_error()


@pytest.mark.hostile
def test_settings_that_others_could_change_are_not_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_client(tmp_path) / "client.json"
    path.chmod(0o666)
    assert reply_of(tmp_path).has_error()
    assert "others can write it; use chmod 600" in capfd.readouterr().err
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:  # only then the file can be given to another user; otherwise this test is that user
        os.chown(path, 54321, -1)
    assert reply_of(tmp_path).has_error()
    assert "belongs to another user; use chown" in capfd.readouterr().err


@pytest.mark.hostile
def test_a_client_answers_once_for_every_round_of_a_run(tmp_path: Path) -> None:
    write_client(tmp_path)
    assert reply_of(tmp_path).has_content()
    again = reply_of(tmp_path)
    assert again.error.reason == "round 1: this client has begun round 1 already"
    assert reply_of(tmp_path, run=2).has_content()
    assert (tmp_path / "answered.json").stat().st_mode & 0o077 == 0
    (tmp_path / "answered.json").write_text("[]")
    assert reply_of(tmp_path, run=3).has_error()


@pytest.mark.hostile
def test_a_server_cannot_address_the_samples_of_a_batch_by_another_batch_size_or_number_of_steps(
    tmp_path: Path,
) -> None:
    """Round 61 of 16 samples would use those of rounds 1001 to 1016 of one sample, in the same order."""
    write_client(tmp_path, clients=1, seed=None, max_batch=16)
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))

    def reply_to(round: int, **changes: Any) -> Message:
        instructions = replace(INSTRUCTIONS, round=round, **changes)
        return reply_of(tmp_path, instructions.content(get_parameters(task), task.shapes))

    # A request that is refused fixes nothing.
    assert reply_to(1, batch=17).error.reason == "batch = 17: this client accepts 1 to 16"
    assert reply_to(61, batch=16).has_content()
    expected = "this client accepts 16 in this run, as in its first round"
    assert reply_to(1001, batch=1).error.reason == f"batch = 1: {expected}"
    assert reply_to(62, batch=16, local_steps=2).has_error()
    assert reply_to(62, batch=16).has_content()


@pytest.mark.hostile
def test_a_new_run_does_not_renew_the_budget_of_searched_uploads(tmp_path: Path) -> None:
    defense = "refiner:search_budget=1,search=always,iterations=2,error_feedback=false"
    write_client(tmp_path, defense=defense, clients=1, seed=None)
    assert all(reply_of(tmp_path, run=run).has_content() for run in (1, 2, 3))
    counts = load((tmp_path / "memory.safetensors").read_bytes())
    # Every run has another batch of four: those of all runs are remembered.
    assert len(counts["samples"]) > 4 and counts["searches"].tolist() == [1] * len(counts["samples"])


@pytest.mark.hostile
def test_batches_of_a_real_client_depend_on_its_secret_and_the_run_and_are_never_all_its_data(
    tmp_path: Path,
) -> None:
    """Otherwise sums over different clients for the same model would differ by one client's update."""
    write_client(tmp_path, clients=1, seed=None)
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    content = replace(INSTRUCTIONS, batch=200).content(get_parameters(task), task.shapes)
    replies = [reply_of(tmp_path, content, run).content for run in (1, 2)]
    assert [dict(reply["metrics"])["num-examples"] for reply in replies] == [100, 100]
    one, two = (reply.array_records["arrays"]["head.weight"].numpy() for reply in replies)
    assert not np.allclose(one, two)


@pytest.mark.hostile
def test_a_client_that_names_its_model_accepts_no_other(tmp_path: Path) -> None:
    for own, accepted in (("lenet", True), ("mlp", False), ("lenet:activation=sigmoid", False)):
        reply = reply_of(write_client(tmp_path / own, model=own))
        assert reply.has_content() == accepted
        if not accepted:
            assert reply.error.reason == f"model = 'lenet': this client accepts '{own}'"
            assert not (tmp_path / own / "answered.json").exists()


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classes": 9}, "classes = 9: this client accepts 10"),
        ({"classes": 11}, "classes = 11: this client accepts 10"),
        ({"batch": 4097}, "batch = 4097: this client accepts 2 to 4096"),
        ({"batch": 1}, "batch = 1: this client accepts 2 to 4096"),
        ({"local_steps": 101}, "local_steps = 101: this client accepts 1 to 100"),
    ],
)
def test_a_refusal_depends_on_the_clients_settings_only(
    change: dict[str, int], reason: str, tmp_path: Path
) -> None:
    """The same answer for images of all ten classes and of the first three."""
    np.savez(tmp_path / "few.npz", images=np.zeros((8, 32, 32, 3), np.uint8), labels=np.arange(8) % 3)
    instructions = replace(INSTRUCTIONS, **change)  # type: ignore[arg-type]
    task = Task(LeNet(instructions.classes), example=torch.zeros(1, 3, 32, 32))
    content = instructions.content(get_parameters(task), task.shapes)
    for data in ("sample", f"npz:{tmp_path / 'few.npz'}"):
        own = {"data": data, "classes": 10, "clients": 1, "seed": None, "min_batch": 2}
        (tmp_path / "answered.json").unlink(missing_ok=True)
        assert reply_of(write_client(tmp_path, **own), content).error.reason == reason


def test_a_secret_that_is_readable_by_others_or_damaged_raises(tmp_path: Path) -> None:
    content = secret(context_of(tmp_path))
    assert len(content) == 32 and secret(context_of(tmp_path)) == content
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(DataError, match="others can read"):
        secret(context_of(tmp_path))
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(DataError, match="has 5 bytes, expected 32"):
        secret(context_of(tmp_path))


def test_wrong_client_settings_raise() -> None:
    number: Any = 3
    with pytest.raises(SettingError, match=r"^seed = -1: expected"):
        ClientSettings(data="sample", defense="none", seed=-1)
    with pytest.raises(SettingError, match=r"^device = 'tpu': expected one of"):
        ClientSettings(data="sample", defense="none", device="tpu")
    with pytest.raises(SettingError, match=r"^model = 3: expected a string$"):
        ClientSettings(data="sample", defense="none", model=number)
    with pytest.raises(SettingError, match=r"^model = 'lenett': expected one of 'lenet', "):
        ClientSettings(data="sample", defense="none", model="lenett:activation=sigmoid")


WITHOUT_FLOWER = "import sys; sys.modules['flwr'] = None; from refiner.cli import app; app({arguments!r})"


@pytest.mark.processes
@pytest.mark.parametrize(("engine", "code"), [("local", 0), ("flower", 2)])
def test_without_flower_only_the_flower_engine_fails(engine: str, code: int, tmp_path: Path) -> None:
    arguments = ["train", "--rounds", "1", "--clients", "2", "--batch", "4", "--out", str(tmp_path / "out")]
    program = WITHOUT_FLOWER.format(arguments=[*arguments, "--engine", engine])
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert completed.returncode == code
    if code:
        assert completed.stderr == "refiner: Flower is not installed: pip install 'refiner-fl[flower]'\n"


def test_the_state_of_a_defence_is_kept_from_call_to_call(tmp_path: Path) -> None:
    context, defense = context_of(tmp_path), Refiner()
    with defense_state(context, defense) as state:
        assert state.state_dict() == {}
        state.load_state_dict({"clients": torch.tensor([0]), "residuals": torch.ones(1, 3)})
    with pytest.raises(ValueError, match="stop"), defense_state(context, defense) as state:
        state.load_state_dict({"clients": torch.tensor([0]), "residuals": torch.zeros(1, 3)})
        raise ValueError("stop")
    with defense_state(context, defense) as state:
        assert torch.equal(state.state_dict()["residuals"], torch.ones(1, 3))
    (tmp_path / "memory.safetensors").write_bytes(save({"ids": torch.tensor([0])}))
    with pytest.raises(DataError, match="expected clients and residuals"), defense_state(context, defense):
        pass
