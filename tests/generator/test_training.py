"""Training of the generator: reproducible, resumable bit for bit, robust against bad files, effective."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from refiner.data import load_sample, read_image_grid
from refiner.errors import DataError, SettingError
from refiner.generator import GANTrainingSettings, Generator, sample_images, train
from refiner.generator import training as training_module

TINY = GANTrainingSettings(
    epochs=3, batch=4, generator_rate=2e-3, discriminator_rate=4e-3, latent=8, width=4, discriminator_width=4
)
Losses = list[tuple[int, float, float]]


def training_data() -> tuple[Tensor, Tensor]:
    """Ten images: two batches of four and a remainder."""
    sample = load_sample()
    return (sample.images[:10] * 255).round().to(torch.uint8), sample.labels[:10]


class Interrupted(Exception):
    """Raised to stop a training."""


def run(
    settings: GANTrainingSettings, out: Path, *, stop_after: int = 0, checkpoint: Path | None = None
) -> Losses:
    """Train, or stop after epoch `stop_after`, and return the losses."""
    losses: Losses = []

    def record(epoch: int, discriminator_loss: float, generator_loss: float) -> None:
        losses.append((epoch, discriminator_loss, generator_loss))
        if epoch == stop_after:
            raise Interrupted

    if stop_after:
        with pytest.raises(Interrupted):
            train(*training_data(), settings, out, checkpoint=checkpoint, on_epoch=record)
    else:
        train(*training_data(), settings, out, checkpoint=checkpoint, on_epoch=record)
    return losses


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Losses]:
    """An uninterrupted training that several tests compare with."""
    out = tmp_path_factory.mktemp("uninterrupted") / "g.safetensors"
    torch.manual_seed(123)
    return out, run(TINY, out)


Uninterrupted = tuple[Path, Losses]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a training that was stopped after its first epoch."""
    out = tmp_path_factory.mktemp("stopped") / "g.safetensors"
    run(TINY, out, stop_after=1)
    return out.with_name("g.safetensors.part").read_bytes()


def test_weights_and_samples_are_written_and_nothing_else(uninterrupted: Uninterrupted) -> None:
    out, losses = uninterrupted
    assert [epoch for epoch, _, _ in losses] == [1, 2, 3]
    assert all(math.isfinite(loss) for epoch_losses in losses for loss in epoch_losses)
    assert sorted(path.name for path in out.parent.iterdir()) == ["g.png", "g.safetensors"]
    generator = Generator.load(out)
    assert (generator.latent, generator.classes, generator.width) == (8, 10, 4)
    assert torch.equal(
        read_image_grid(out.with_suffix(".png"), 100, 32, columns=10), sample_images(generator)
    )


def test_the_returned_generator_is_the_one_in_the_file(tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    steps: list[float] = []
    generator = train(*training_data(), replace(TINY, epochs=1), out, on_step=steps.append)
    assert steps == [0.5, 1.0]
    assert not generator.training and not any(p.requires_grad for p in generator.parameters())
    assert all(torch.equal(t, generator.state_dict()[n]) for n, t in Generator.load(out).state_dict().items())


def test_the_batch_norm_statistics_fit_the_averaged_weights(uninterrupted: Uninterrupted) -> None:
    """Images in evaluation mode are close to those with the statistics of a large batch."""
    generator = Generator.load(uninterrupted[0])
    y = torch.arange(500) % 10
    z = generator.draw(y, 3)
    in_evaluation = generator(z, y)
    assert (generator.train()(z, y) - in_evaluation).abs().mean() < 0.03


def test_a_resumed_training_is_bit_identical(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    torch.manual_seed(7)
    first = run(TINY, out, stop_after=1)
    assert [path.name for path in tmp_path.iterdir()] == ["g.safetensors.part"]
    torch.manual_seed(99)
    first += run(TINY, out, stop_after=2)
    assert first + run(TINY, out) == uninterrupted[1]
    for path in (out, out.with_suffix(".png")):
        assert path.read_bytes() == (uninterrupted[0].parent / path.name).read_bytes()
    assert not (tmp_path / "g.safetensors.part").exists()


def test_a_checkpoint_extends_a_training(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "g.safetensors", tmp_path / "checkpoint"
    run(replace(TINY, epochs=2), out, checkpoint=checkpoint)
    assert checkpoint.exists()
    assert run(TINY, out, checkpoint=checkpoint) == uninterrupted[1][2:]
    assert out.read_bytes() == uninterrupted[0].read_bytes()
    content = checkpoint.read_bytes()
    with pytest.raises(SettingError) as caught:
        run(replace(TINY, epochs=1), out, checkpoint=checkpoint)
    assert str(caught.value) == (
        f"epochs = 1: expected an integer ≥ 3, the number of epochs in {str(checkpoint)!r}"
    )
    assert checkpoint.read_bytes() == content


def test_the_time_limit_leaves_weights_and_a_checkpoint(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    out, losses = tmp_path / "g.safetensors", []
    train(*training_data(), TINY, out, minutes=1e-6, on_epoch=lambda *loss: losses.append(loss))
    assert losses == uninterrupted[1][:1]
    assert Generator.load(out).width == 4
    assert (tmp_path / "g.safetensors.part").exists()
    assert losses + run(TINY, out) == uninterrupted[1]
    assert out.read_bytes() == uninterrupted[0].read_bytes()


def test_the_global_random_state_is_unchanged(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run(replace(TINY, epochs=1), tmp_path / "g.safetensors")
    assert torch.equal(torch.rand(1), expected)


def test_another_seed_gives_other_losses(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    assert run(replace(TINY, seed=1), tmp_path / "g.safetensors", stop_after=1) != uninterrupted[1][:1]


def test_a_checkpoint_of_other_settings_or_data_raises(stopped: bytes, tmp_path: Path) -> None:
    out, part = tmp_path / "g.safetensors", tmp_path / "g.safetensors.part"
    part.write_bytes(stopped)
    message = f"checkpoint = {str(part)!r}: made with another {{}}; delete it to start anew"
    for changed in ({"seed": 6}, {"width": 5}, {"batch": 5, "augment": False}):
        with pytest.raises(DataError) as caught:
            train(*training_data(), replace(TINY, **changed), out)
        assert str(caught.value) == message.format(", ".join(changed))
    images, labels = training_data()
    with pytest.raises(DataError) as caught:
        train(images.flip(0), labels, TINY, out)
    assert str(caught.value) == message.format("data")
    assert part.read_bytes() == stopped and not out.exists()


def broken_contents(whole: bytes) -> dict[str, bytes]:
    flipped = bytearray(whole)
    flipped[-1000] ^= 1
    return {
        "empty": b"",
        "garbage": b"garbage" * 30,
        "cut short": whole[:-10],
        "cut to the head": whole[:100],
        "a bit flipped": bytes(flipped),
        "another epoch": whole.replace(b'"done":"1"', b'"done":"2"'),
    }


def test_a_broken_checkpoint_raises_one_line_and_is_kept(stopped: bytes, tmp_path: Path) -> None:
    out, part = tmp_path / "g.safetensors", tmp_path / "g.safetensors.part"
    out.write_bytes(b"earlier weights")
    for kind, content in broken_contents(stopped).items():
        assert content != stopped, kind
        part.write_bytes(content)
        with pytest.raises(DataError) as caught:
            train(*training_data(), TINY, out)
        pattern = rf"checkpoint = '{re.escape(str(part))}': unreadable \(.+\); delete it to start anew"
        assert re.fullmatch(pattern, str(caught.value)), kind
        assert part.read_bytes() == content
        assert out.read_bytes() == b"earlier weights"
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("header", [None, {"sum": "0", "done": "1"}, {"settings": "[1]", "done": "1"}])
def test_a_foreign_checkpoint_raises_one_line(header: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"weight.a": torch.zeros(1)}, tmp_path / "g.safetensors.part", header)
    with pytest.raises(DataError, match=r"^checkpoint = .*: unreadable \(.+\); delete it to start anew$"):
        train(*training_data(), TINY, tmp_path / "g.safetensors")


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.processes
def test_a_few_steps_lower_both_losses(augment: bool) -> None:
    """Each network against a fixed opponent, whose weights must not change."""
    settings, draws = replace(TINY, augment=augment), torch.Generator().manual_seed(0)
    state = training_module._initial_state(settings, torch.device("cpu"))
    real, labels = load_sample().images[:4], training_data()[1][:4]
    weights = [w.clone() for w in state.generator.parameters()]
    losses = [training_module._discriminator_step(state, real, labels, settings, draws) for _ in range(12)]
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    assert all(torch.equal(a, b) for a, b in zip(weights, state.generator.parameters(), strict=True))

    weights = [w.clone() for w in state.discriminator.parameters()]
    losses = [training_module._generator_step(state, labels, settings, draws) for _ in range(12)]
    assert sum(losses[-3:]) < sum(losses[:3]) - 3
    assert all(torch.equal(a, b) for a, b in zip(weights, state.discriminator.parameters(), strict=True))
    assert all(w.requires_grad for w in state.discriminator.parameters())


def test_the_average_is_updated() -> None:
    state = training_module._initial_state(TINY, torch.device("cpu"))
    average, weight = state.average.start.weight, state.generator.start.weight
    with torch.no_grad():
        weight.add_(1.0)
    state.update_average(0.75)
    torch.testing.assert_close(average, weight - 0.75)
    state.update_average(0)
    assert torch.equal(average, weight)


def test_a_loss_that_is_not_finite_raises(
    stopped: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, part = tmp_path / "g.safetensors", tmp_path / "g.safetensors.part"
    part.write_bytes(stopped)
    monkeypatch.setattr(training_module, "_discriminator_step", lambda *_: torch.tensor(math.nan))
    with pytest.raises(
        DataError, match=r"^loss = \(nan, .*\): not finite in epoch 2; try lower learning rates$"
    ):
        train(*training_data(), TINY, out)
    assert part.read_bytes() == stopped and not out.exists()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(4, 3, 32, 32), torch.zeros(4).long(), "images: torch.float32 [4, 3, 32, 32], expected"),
        (
            torch.zeros(4, 3, 28, 28).byte(),
            torch.zeros(4).long(),
            "images: torch.uint8 [4, 3, 28, 28], expected",
        ),
        (
            torch.zeros(1, 3, 32, 32).byte(),
            torch.zeros(1).long(),
            "images: torch.uint8 [1, 3, 32, 32], expected",
        ),
        (
            torch.zeros(4, 3, 32, 32).byte(),
            torch.zeros(3).long(),
            "labels: torch.int64 [3], expected torch.int64 [4]",
        ),
        (
            torch.zeros(4, 3, 32, 32).byte(),
            torch.zeros(4),
            "labels: torch.float32 [4], expected torch.int64 [4]",
        ),
        (torch.zeros(4, 3, 32, 32).byte(), torch.tensor([0, 1, 2, 10]), "labels in [0, 10]: expected [0, 9]"),
        (torch.zeros(4, 3, 32, 32).byte(), torch.tensor([0, 1, 2, -1]), "labels in [-1, 2]: expected [0, 9]"),
    ],
)
def test_invalid_data_raise_one_line(images: Tensor, labels: Tensor, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        train(images, labels, TINY, tmp_path / "g.safetensors")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_name_or_time_limit_raises_one_line(tmp_path: Path) -> None:
    for out in (tmp_path / "g.png", tmp_path):
        with pytest.raises(SettingError) as caught:
            train(*training_data(), TINY, out)
        assert str(caught.value).startswith("out = ")
        assert str(caught.value).endswith(": expected a file name ending in .safetensors")
    for minutes in (0.0, -1.0, math.nan):
        with pytest.raises(SettingError, match=r"^minutes = .*: expected a number in \(0, ∞\)$"):
            train(*training_data(), TINY, tmp_path / "g.safetensors", minutes=minutes)
