"""Training of the evaluation network: reproducible, resumable bit for bit, effective."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from refiner.checkpoint import tensors_checksum
from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.evaluation import EvaluationNetwork, EvaluationTrainingSettings, train, training
from refiner.evaluation.training import _prepare

TINY = EvaluationTrainingSettings(epochs=2, learning_rate=1e-3, batch=8, seed=5, decay=True, grey_share=0.5)


def training_images() -> Tensor:
    """Two images, less than a batch, that can be made smaller."""
    return load_sample().images[:2, :, :29, :29]


class Interrupted(Exception):
    """Raised to stop a training."""


def one_epoch(settings: EvaluationTrainingSettings, out: Path) -> float:
    """Train for one epoch and return its loss."""
    losses: list[float] = []

    def stop(epoch: int, loss: float) -> None:
        losses.append(loss)
        raise Interrupted

    with pytest.raises(Interrupted):
        train(training_images(), settings, out, on_epoch=stop)
    assert not out.exists()
    return losses[0]


def equal_weights(first: EvaluationNetwork, second: EvaluationNetwork) -> bool:
    return all(torch.equal(v, second.state_dict()[k]) for k, v in first.state_dict().items())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationNetwork, list[float], Path]:
    """An uninterrupted training that several tests compare with: network, losses, file."""
    out, losses = tmp_path_factory.mktemp("uninterrupted") / "network", []
    torch.manual_seed(123)
    network = train(training_images(), TINY, out, on_epoch=lambda epoch, loss: losses.append(loss))
    return network, losses, out


Uninterrupted = tuple[EvaluationNetwork, list[float], Path]
InterruptedRun = tuple[float, Path]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> InterruptedRun:
    """The same training, stopped after its first epoch: its loss and its checkpoint."""
    out = tmp_path_factory.mktemp("interrupted") / "network"
    torch.manual_seed(7)
    loss = one_epoch(TINY, out)
    assert [path.name for path in out.parent.iterdir()] == ["network.part"]
    return loss, out.with_name("network.part")


def test_the_loss_decreases_and_the_weights_are_written(uninterrupted: Uninterrupted) -> None:
    network, losses, out = uninterrupted
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert equal_weights(EvaluationNetwork.load(out), network)
    assert [path.name for path in out.parent.iterdir()] == ["network"]
    assert not network.training and not any(p.requires_grad for p in network.parameters())


@pytest.mark.processes
def test_a_resumed_training_is_bit_identical(
    uninterrupted: Uninterrupted, interrupted: InterruptedRun, tmp_path: Path
) -> None:
    out, part = tmp_path / "network", tmp_path / "network.part"
    assert interrupted[0] == uninterrupted[1][0]
    shutil.copy(interrupted[1], part)
    with safe_open(part, framework="pt") as file:
        settings = json.loads(file.metadata()["settings"])
        assert settings == {
            **asdict(TINY),
            "data": [*training_images().shape, tensors_checksum(training_images())],
        }
        assert file.metadata()["done"] == "1"

    with pytest.raises(DataError) as caught:
        train(training_images(), replace(TINY, seed=6), out)
    assert str(caught.value) == (
        f"checkpoint = {str(part)!r}: made with another seed; delete it to start anew"
    )

    # The global random state between the two runs has no effect.
    torch.manual_seed(99)
    losses: list[tuple[int, float]] = []
    resumed = train(training_images(), TINY, out, on_epoch=lambda epoch, loss: losses.append((epoch, loss)))
    assert losses == [(2, uninterrupted[1][1])]
    assert equal_weights(resumed, uninterrupted[0])
    assert out.read_bytes() == uninterrupted[2].read_bytes()
    assert not part.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: 1 - x,
        lambda x: x[:1],
        lambda x: x.flip(0),
        # The same bytes in another shape.
        lambda x: x.view(6, 1, *x.shape[2:]),
    ],
)
def test_a_checkpoint_of_other_images_raises(
    change: Callable[[Tensor], Tensor], interrupted: InterruptedRun, tmp_path: Path
) -> None:
    out, part = tmp_path / "network", tmp_path / "network.part"
    shutil.copy(interrupted[1], part)
    content = part.read_bytes()
    with pytest.raises(DataError) as caught:
        train(change(training_images().contiguous()), TINY, out)
    assert str(caught.value) == (
        f"checkpoint = {str(part)!r}: made with another data; delete it to start anew"
    )
    assert part.read_bytes() == content and not out.exists()


def test_another_seed_gives_another_loss(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    assert one_epoch(replace(TINY, seed=6), tmp_path / "network") != uninterrupted[1][0]


def test_bytes_and_floats_give_the_same_batches() -> None:
    whole = (load_sample().images[:4] * 255).round().to(torch.uint8)
    seen = set()
    for seed in range(20):
        draws = [torch.Generator().manual_seed(seed) for _ in range(2)]
        first, second = (
            _prepare(p, TINY, g) for p, g in zip((whole, whole.float() / 255), draws, strict=True)
        )
        assert torch.equal(first, second)
        assert first.min() >= 0 and first.max() <= 1 and first.dtype == torch.float32
        EvaluationNetwork.check_images(first)
        seen.add(first.shape[1:])
    # Grey and coloured, small and large: the network must meet all that it is to take.
    assert {shape[0] for shape in seen} == {1, 3}
    assert {shape[1] for shape in seen} >= {28, 30, 32}


@pytest.mark.parametrize("content", [b"", b"garbage" * 30])
def test_a_broken_checkpoint_raises_one_line(content: bytes, tmp_path: Path) -> None:
    part = tmp_path / "network.part"
    part.write_bytes(content)
    with pytest.raises(DataError) as caught:
        train(training_images(), TINY, tmp_path / "network")
    pattern = rf"checkpoint = '{re.escape(str(part))}': unreadable \(.+\); delete it to start anew"
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("header", [None, {"done": "1"}, {"training": "{", "done": "1"}])
def test_a_foreign_checkpoint_raises_one_line(header: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"weight.a": torch.zeros(1)}, tmp_path / "network.part", header)
    with pytest.raises(DataError, match=r"^checkpoint = .*: unreadable \(.+\); delete it to start anew$"):
        train(training_images(), TINY, tmp_path / "network")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 20, 32), r"image shape = \(3, 20, 32\): .*"),
        ((0, 3, 32, 32), r"images of shape \[0, 3, 32, 32\]: expected \[N, C, H, W\] with N ≥ 1"),
        ((3, 32, 32), r"images of shape \[3, 32, 32\]: expected \[N, C, H, W\] with N ≥ 1"),
    ],
)
def test_images_of_another_shape_raise(shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        train(torch.zeros(shape), TINY, tmp_path / "network")
    assert re.fullmatch(message, str(caught.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.tolist(), r"images = list: expected uint8 or floating-point images \[N, C, H, W\]"),
        (
            lambda x: x.long(),
            r"images = torch.int64 \[.*\]: expected uint8 or floating-point images \[.*\]",
        ),
        (lambda x: x.index_fill(3, torch.tensor([3]), torch.nan), r"images: contain NaN or infinity"),
        (lambda x: 255 * x, r"images: values in \[.*, 2.*\], expected \[0, 1\]"),
        (lambda x: x - 0.5, r"images: values in \[-0\.4.*, 0\.5\], expected \[0, 1\]"),
    ],
)
def test_invalid_images_raise(change: Callable[[Tensor], Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        train(change(training_images()), TINY, tmp_path / "network")
    assert re.fullmatch(message, str(caught.value)), str(caught.value)
    assert not list(tmp_path.iterdir())


def test_other_floating_point_types_are_accepted(tmp_path: Path) -> None:
    network = train(training_images().double(), replace(TINY, epochs=1), tmp_path / "network")
    assert network.linear.weight.dtype == torch.float32


def test_an_unavailable_device_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^device = 'nowhere': not available here \(.+\)$"):
        train(training_images(), TINY, tmp_path / "network", device="nowhere")


def test_a_diverging_training_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(training, "_train_epoch", lambda *_: float("nan"))
    with pytest.raises(DataError) as caught:
        train(training_images(), TINY, tmp_path / "network")
    assert str(caught.value) == "loss = nan: not finite in epoch 1; try a lower learning rate"
    assert not list(tmp_path.iterdir())


NO_NUMBER = st.sampled_from([None, "1", True, False, [1], float("nan"), float("inf"), -float("inf"), 1j])
NOT_AN_INTEGER = st.one_of(NO_NUMBER, st.floats())
WRONG: dict[str, tuple[st.SearchStrategy[object], str]] = {
    "epochs": (st.one_of(NOT_AN_INTEGER, st.integers(max_value=0)), "an integer ≥ 1"),
    "learning_rate": (
        st.one_of(
            NO_NUMBER, st.floats(max_value=0), st.floats(min_value=1, exclude_min=True), st.integers(2)
        ),
        "a number in (0, 1]",
    ),
    "decay": (st.sampled_from([0, 1, None, "True", 0.0]), "True or False"),
    "batch": (st.one_of(NOT_AN_INTEGER, st.integers(max_value=0)), "an integer ≥ 1"),
    "grey_share": (
        st.one_of(
            NO_NUMBER,
            st.floats(max_value=0, exclude_max=True),
            st.floats(min_value=1, exclude_min=True),
            st.integers(max_value=-1),
        ),
        "a number in [0, 1]",
    ),
    "seed": (
        st.one_of(NOT_AN_INTEGER, st.integers(max_value=-1), st.integers(min_value=2**31)),
        "an integer in [0, 2147483647]",
    ),
}


@pytest.mark.parametrize("field", list(WRONG))
@given(data=st.data())
def test_a_wrong_setting_raises_one_line(field: str, data: st.DataObject) -> None:
    values, expected = WRONG[field]
    value = data.draw(values)
    with pytest.raises(SettingError) as caught:
        replace(EvaluationTrainingSettings(), **{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} = {str(repr(value))[:70]}")
    assert message.endswith(f": expected {expected}")
    assert "\n" not in message


def test_every_setting_is_tested() -> None:
    assert set(WRONG) == set(asdict(EvaluationTrainingSettings()))


RIGHT: list[Callable[[], EvaluationTrainingSettings]] = [
    EvaluationTrainingSettings,
    lambda: EvaluationTrainingSettings(
        epochs=1, learning_rate=1, decay=True, batch=1, grey_share=0, seed=2**31 - 1
    ),
    lambda: EvaluationTrainingSettings(grey_share=1.0, seed=0),
]


@pytest.mark.parametrize("make", RIGHT)
def test_the_limits_of_the_ranges_are_accepted(make: Callable[[], EvaluationTrainingSettings]) -> None:
    assert make().epochs >= 1
