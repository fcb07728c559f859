"""The border on both sides, in one process: what is refused, and in which words."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp

from refiner import Task
from refiner.defenses import Chain, DPGaussian, NoDefense, Pruning, Quantisation, Refiner, Soteria
from refiner.errors import DataError, RefinerError, SettingError
from refiner.federation.flower import defense_mod, secret
from refiner.federation.flower.client import ClientSettings, client_app
from refiner.federation.flower.messages import Order, answer, from_arrays, read_answer
from refiner.federation.flower.run_config import Rules
from refiner.federation.local import get_parameters
from refiner.models import LeNet

SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}
MOVE = torch.arange(8.0)
ORDER = Order(round=1, model="lenet", classes=10, batch=4, local_steps=1, lr=0.1)


def context(folder: Path | None = None) -> Context:
    config = {} if folder is None else {"folder": str(folder)}
    return Context(1, 2, dict(config), RecordDict(), {})


def message(content: RecordDict) -> Message:
    about = Metadata(1, "asked", 1, 2, "", "1", 0.0, 3600.0, "train")
    return make_message(about, content)


def client(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    own = {"data": "sample", "defense": "none", "clients": 2, "seed": 3} | changes
    (folder / "client.json").write_text(json.dumps(own))
    return folder


def ask(folder: Path | None, order: Order = ORDER, content: RecordDict | None = None) -> Message:
    torch.manual_seed(0)
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    asked = content or order.content(get_parameters(task), task.shapes)
    return client_app()(message(asked), context(folder))


def test_what_is_sent_is_read() -> None:
    move, samples = read_answer(answer(MOVE, SHAPES, 5), SHAPES, MOVE, most=5)
    assert torch.equal(move, MOVE) and samples == 5
    assert Order.read(ORDER.content(MOVE, SHAPES)) == ORDER


def arrays(**changes: Any) -> ArrayRecord:
    made = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)} | changes
    return ArrayRecord({k: v if isinstance(v, Array) else Array(v) for k, v in made.items() if v is not None})


LIAR = Array(np.zeros(2, np.float32))
LIAR.data = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (2,), }".ljust(128) + b"\n"
)
LONG = Array(np.zeros(2, np.float32))
LONG.data = bytes(10**6)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (arrays(bias=None), "bias: missing"),
        (arrays(more=np.zeros(1, np.float32)), "'more': not a parameter"),
        (arrays(bias=np.zeros(3, np.float32)), r"bias: float32 \[3\], expected float32 \[2\]"),
        (arrays(bias=np.zeros(2)), "bias: 'float64' of .* expected float32"),
        (arrays(bias=np.array([0, np.inf], np.float32)), "bias: holds NaN or infinity"),
        (arrays(bias=np.array([np.nan, 0], np.float32)), "bias: holds NaN or infinity"),
        (arrays(bias=LIAR), "bias: unreadable"),
        (arrays(bias=LONG), "bias: 'float32' of 1000000 bytes"),
        (ConfigRecord({}), "arrays: missing"),
    ],
)
def test_arrays_that_are_refused(record: Any, told: str) -> None:
    with pytest.raises(DataError, match=f"^{told}"):
        from_arrays(RecordDict({"arrays": record}), SHAPES, MOVE)


@pytest.mark.parametrize("count", [0, -1, 9, 2.5])
def test_counts_that_are_refused(count: float) -> None:
    content = answer(MOVE, SHAPES, 1)
    content["metrics"] = MetricRecord({"num-examples": count})
    with pytest.raises(SettingError, match=f"^num-examples = {count}: expected an integer in"):
        read_answer(content, SHAPES, MOVE, most=8)
    with pytest.raises(SettingError, match=r"^num-examples = None"):
        read_answer(RecordDict({"arrays": arrays()}), SHAPES, MOVE, most=8)


def test_a_client_answers(tmp_path: Path) -> None:
    reply = ask(client(tmp_path))
    assert reply.content.array_records["arrays"]["head.weight"].shape == (10, 768)
    assert dict(reply.content["metrics"]) == {"num-examples": 4}
    assert sorted(reply.content) == ["arrays", "metrics"]


def test_the_noise_is_the_operating_systems_unless_the_client_says_otherwise(tmp_path: Path) -> None:
    def sent(folder: Path) -> np.ndarray:
        return ask(folder).content.array_records["arrays"]["head.weight"].numpy()

    noisy = "dp-gaussian:magnitude=0.1"
    own, study = client(tmp_path / "own", defense=noisy, seed=None), client(tmp_path / "study", defense=noisy)
    assert not np.array_equal(sent(own), sent(own))
    assert np.array_equal(sent(study), sent(study))
    # Refiner's noise depends on the secret: the same at every upload of an image, another for another client.
    refined = {"defense": "refiner:iterations=1", "seed": None, "clients": 1}
    one, two = (client(tmp_path / name, **refined) for name in ("one", "two"))
    assert np.array_equal(sent(one), sent(one))
    assert not np.array_equal(sent(one), sent(two))
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
def test_a_client_that_can_not_protect_sends_nothing(
    broken: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = ask(client(tmp_path, **broken))
    assert reply.has_error() and not reply.has_content()
    assert reply.error.code == 100
    # Why stays with the client: the text may tell of its data.
    assert "its own log says why" in reply.error.reason and "=" not in reply.error.reason
    assert "refiner: " in capfd.readouterr().err


def test_without_a_defence_named_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text('{"data": "sample"}')
    assert ask(tmp_path).has_error()
    assert ask(None).has_error()
    assert ask(tmp_path / "absent").has_error()


def test_a_server_has_no_say_in_seed_data_or_defence(tmp_path: Path) -> None:
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    for more in ("seed", "defense", "data"):
        content = ORDER.content(get_parameters(task), task.shapes)
        content["config"] = ConfigRecord({**content.config_records["config"], more: 1})
        assert ask(client(tmp_path), content=content).has_error()
    spoiled = ORDER.content(get_parameters(task) * np.nan, task.shapes)
    assert ask(client(tmp_path), content=spoiled).has_error()
    with pytest.raises(DataError, match="run-config = 'seed': unknown"):
        Rules.read({"out": "/srv", "seed": 1})


def test_a_secret_that_others_can_read_or_that_is_cut_short(tmp_path: Path) -> None:
    held = secret(context(tmp_path))
    assert len(held) == 32 and secret(context(tmp_path)) == held
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(DataError, match="others may read"):
        secret(context(tmp_path))
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(DataError, match="holds 5 bytes, expected 32"):
        secret(context(tmp_path))


def test_settings_of_a_client() -> None:
    with pytest.raises(SettingError, match=r"^seed = -1: expected"):
        ClientSettings(data="sample", defense="none", seed=-1)
    with pytest.raises(SettingError, match=r"^device = 'tpu': expected one of"):
        ClientSettings(data="sample", defense="none", device="tpu")


# The mod ----------------------------------------------------------------------------------------------------


def modded(defense: Any, new: ArrayRecord, sent: ArrayRecord | None = None) -> Message:
    """The reply of an existing client that answers `new` weights, through the mod."""
    app = ClientApp()

    @app.train(mods=[defense_mod(defense)])
    def train(asked: Message, context: Context) -> Message:
        content = RecordDict({"arrays": new, "metrics": MetricRecord({"num-examples": 4})})
        return Message(content, reply_to=asked)

    return app(message(RecordDict({"arrays": sent or arrays()})), context())


WEIGHT = np.array([[1, -5, 2], [0.5, 4, -3]], np.float32)


def test_a_mod_protects_the_move() -> None:
    reply = modded(Pruning(rate=0.5), arrays(weight=WEIGHT))
    kept = reply.content.array_records["arrays"]["weight"].numpy()
    assert kept.tolist() == [[0, -5, 0], [0, 4, -3]]
    assert dict(reply.content["metrics"]) == {"num-examples": 4}
    both = modded(Chain([Pruning(rate=0.5), Quantisation(bits=8)]), arrays(weight=WEIGHT))
    assert (both.content.array_records["arrays"]["weight"].numpy()[0] == 0).sum() == 2
    one, two = (modded(DPGaussian(magnitude=0.1), arrays(weight=WEIGHT)) for _ in range(2))
    noisy = [r.content.array_records["arrays"]["weight"].numpy() for r in (one, two)]
    assert not np.array_equal(*noisy)
    bare = modded(NoDefense(), arrays(weight=WEIGHT))
    assert np.array_equal(bare.content.array_records["arrays"]["weight"].numpy(), WEIGHT)


@pytest.mark.parametrize(
    "new",
    [
        arrays(weight=WEIGHT * np.float32(np.nan)),
        arrays(weight=WEIGHT[:, :2]),
        arrays(weight=WEIGHT.astype(np.float64)),
        arrays(weight=None),
        arrays(more=WEIGHT),
        arrays(bias=np.zeros(2, np.int64)),
    ],
)
def test_a_mod_that_can_not_protect_lets_nothing_through(
    new: ArrayRecord, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = modded(Pruning(), new)
    assert reply.has_error() and not reply.has_content()
    assert reply.error.reason.startswith("pruning failed (")
    assert "refiner: " in capfd.readouterr().err


def test_counters_that_change_are_refused_and_others_pass() -> None:
    sent = arrays(count=np.array([3]))
    assert modded(Pruning(), arrays(count=np.array([4])), sent).has_error()
    assert modded(Pruning(), arrays(count=np.array([3])), sent).has_content()


def test_an_error_of_the_client_stays_one() -> None:
    app = ClientApp()

    @app.train(mods=[defense_mod(Pruning())])
    def train(asked: Message, context: Context) -> Message:
        return Message(Error(code=7, reason="mine"), reply_to=asked)

    assert app(message(RecordDict({"arrays": arrays()})), context()).error.reason == "mine"


@pytest.mark.parametrize(
    "defense", [Refiner(), Soteria(), DPGaussian(per_sample=True), Chain([Refiner(), Pruning()]), "pruning"]
)
def test_a_defence_that_needs_the_data_is_no_mod(defense: Any) -> None:
    with pytest.raises(SettingError, match=r"needs the data|expected a Defense") as found:
        defense_mod(defense)
    assert "\n" not in str(found.value)


# Without Flower ---------------------------------------------------------------------------------------------

WITHOUT = "import sys; sys.modules['flwr'] = None; from refiner.cli import app; app({arguments!r})"


@pytest.mark.parametrize(("engine", "code"), [("local", 0), ("flower", 2)])
def test_without_flower_installed(engine: str, code: int, tmp_path: Path) -> None:
    wanted = ["train", "--rounds", "1", "--clients", "2", "--batch", "4", "--out", str(tmp_path / "out")]
    program = WITHOUT.format(arguments=[*wanted, "--engine", engine])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    if code:
        assert done.stderr == "refiner: Flower is not installed: pip install 'refiner[flower]'\n"


def test_wrong_rules() -> None:
    for wrong in ({"out": "here"}, {"deadline": 0.0}, {"minimum": 0}, {"patience": -1.0}, {"sampled": 9}):
        with pytest.raises(RefinerError, match=f"^{next(iter(wrong))} = "):
            Rules(**{"out": "/srv", **wrong})
