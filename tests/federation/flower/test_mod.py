"""The mod around an existing client: what it protects, and what it replaces by an error."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp

from refiner.defenses import Chain, DPGaussian, NoDefense, Pruning, Quantisation, Refiner, Soteria
from refiner.errors import SettingError
from refiner.federation.flower import defense_mod

WEIGHT = np.array([[1, -5, 2], [0.5, 4, -3]], np.float32)


def arrays(**changes: Any) -> ArrayRecord:
    values = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)} | changes
    return ArrayRecord({name: Array(value) for name, value in values.items() if value is not None})


def request(content: RecordDict) -> Message:
    return make_message(Metadata(1, "request", 1, 2, "", "1", 0.0, 3600.0, "train"), content)


def reply_through_mod(defense: Any, new: ArrayRecord, received: ArrayRecord | None = None) -> Message:
    """The reply of an existing client that returns `new` weights, through the mod."""
    app = ClientApp()

    @app.train(mods=[defense_mod(defense)])
    def train(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": new, "metrics": MetricRecord({"num-examples": 4})})
        return Message(content, reply_to=message)

    context = Context(1, 2, {}, RecordDict(), {})
    return app(request(RecordDict({"arrays": received or arrays()})), context)


def weight_in(reply: Message) -> np.ndarray:
    return reply.content.array_records["arrays"]["weight"].numpy()


def test_the_mod_protects_the_difference_of_the_weights() -> None:
    reply = reply_through_mod(Pruning(rate=0.5), arrays(weight=WEIGHT))
    assert weight_in(reply).tolist() == [[0, -5, 0], [0, 4, -3]]
    assert dict(reply.content["metrics"]) == {"num-examples": 4}
    chain = Chain([Pruning(rate=0.5), Quantisation(bits=8)])
    assert (weight_in(reply_through_mod(chain, arrays(weight=WEIGHT)))[0] == 0).sum() == 2
    noisy = [weight_in(reply_through_mod(DPGaussian(magnitude=0.1), arrays(weight=WEIGHT))) for _ in range(2)]
    assert not np.array_equal(*noisy)
    assert np.array_equal(weight_in(reply_through_mod(NoDefense(), arrays(weight=WEIGHT))), WEIGHT)


@pytest.mark.parametrize(
    "new",
    [
        arrays(weight=WEIGHT[:, :2]),
        arrays(weight=WEIGHT.astype(np.float64)),
        arrays(weight=None),
        arrays(more=WEIGHT),
        arrays(bias=np.zeros(2, np.int64)),
    ],
)
def test_weights_that_cannot_be_protected_become_an_error(
    new: ArrayRecord, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = reply_through_mod(Pruning(), new)
    assert reply.has_error() and not reply.has_content()
    assert reply.error.reason.startswith("pruning could not protect the reply; no arrays were sent")
    assert "refiner: " in capfd.readouterr().err


@pytest.mark.hostile
def test_weights_that_are_not_finite_are_replaced_and_not_refused() -> None:
    """A server that chooses the weights chooses when a client's training overflows."""
    reply = reply_through_mod(Pruning(rate=0.5), arrays(weight=WEIGHT * np.float32(np.nan)))
    assert weight_in(reply).tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.hostile
def test_nothing_but_protected_arrays_and_metrics_leaves_an_app_with_the_mod() -> None:
    app = ClientApp(mods=[defense_mod(Pruning())])
    contents: dict[str, RecordDict] = {}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(contents["train"], reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(contents["evaluate"], reply_to=message)

    def reply_to(kind: str, content: dict[str, Any]) -> Message:
        contents[kind] = RecordDict(content)
        metadata = Metadata(1, "request", 1, 2, "", "1", 0.0, 3600.0, kind)
        message = make_message(metadata, RecordDict({"arrays": arrays()}))
        return app(message, Context(1, 2, {}, RecordDict(), {}))

    metrics = MetricRecord({"num-examples": 4, "accuracy": 0.5})
    assert dict(reply_to("evaluate", {"metrics": metrics}).content["metrics"]) == dict(metrics)
    assert reply_to("evaluate", {"metrics": metrics, "arrays": arrays(weight=WEIGHT)}).has_error()
    raw = ConfigRecord({"raw": WEIGHT.tobytes()})
    for kind in ("train", "evaluate"):
        assert reply_to(kind, {"arrays": arrays(weight=WEIGHT), "config": raw}).has_error()
    assert reply_to("train", {"arrays": arrays(weight=WEIGHT), "metrics": metrics}).has_content()


def test_integer_arrays_pass_only_if_unchanged() -> None:
    received = arrays(count=np.array([3]))
    assert reply_through_mod(Pruning(), arrays(count=np.array([4])), received).has_error()
    assert reply_through_mod(Pruning(), arrays(count=np.array([3])), received).has_content()


def test_an_error_of_the_client_is_passed_on() -> None:
    app = ClientApp()

    @app.train(mods=[defense_mod(Pruning())])
    def train(message: Message, context: Context) -> Message:
        return Message(Error(code=7, reason="mine"), reply_to=message)

    reply = app(request(RecordDict({"arrays": arrays()})), Context(1, 2, {}, RecordDict(), {}))
    assert reply.error.reason == "mine"


@pytest.mark.parametrize(
    "defense", [Refiner(), Soteria(), DPGaussian(per_sample=True), Chain([Refiner(), Pruning()]), "pruning"]
)
def test_a_defence_that_needs_the_data_raises(defense: Any) -> None:
    with pytest.raises(SettingError, match=r"needs the data|expected a Defense") as caught:
        defense_mod(defense)
    assert "\n" not in str(caught.value) and caught.value.field == "defense"
