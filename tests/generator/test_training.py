"""Training of the generator: reproducible, resumable to the last bit, wary of bad files, able to learn."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from refiner.data import load_sample, read_sheet
from refiner.errors import DataError, SettingError
from refiner.generator import Generator, Training, samples, train
from refiner.generator import training as training_module

TINY = Training(
    epochs=3, batch=4, generator_rate=2e-3, discriminator_rate=4e-3, latent=8, width=4, discriminator_width=4
)
Losses = list[tuple[int, float, float]]


def few() -> tuple[Tensor, Tensor]:
    """Ten images: two batches and a rest."""
    sample = load_sample()
    return (sample.images[:10] * 255).round().to(torch.uint8), sample.labels[:10]


class Interrupted(Exception):
    """What a killed run looks like from inside."""


def run(training: Training, out: Path, *, stop_after: int = 0, checkpoint: Path | None = None) -> Losses:
    """Train, or stop right after an epoch was told of, and give the losses."""
    told: Losses = []

    def tell(epoch: int, judging: float, making: float) -> None:
        told.append((epoch, judging, making))
        if epoch == stop_after:
            raise Interrupted

    if stop_after:
        with pytest.raises(Interrupted):
            train(*few(), training, out, checkpoint=checkpoint, on_epoch=tell)
    else:
        train(*few(), training, out, checkpoint=checkpoint, on_epoch=tell)
    return told


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Losses]:
    """One training that several tests compare with."""
    out = tmp_path_factory.mktemp("unbroken") / "g.safetensors"
    torch.manual_seed(123)
    return out, run(TINY, out)


Unbroken = tuple[Path, Losses]


def test_it_leaves_weights_and_samples_and_nothing_else(unbroken: Unbroken) -> None:
    out, losses = unbroken
    assert [epoch for epoch, _, _ in losses] == [1, 2, 3]
    assert all(math.isfinite(loss) for told in losses for loss in told)
    assert sorted(path.name for path in out.parent.iterdir()) == ["g.png", "g.safetensors"]
    generator = Generator.load(out)
    assert (generator.latent, generator.classes, generator.width) == (8, 10, 4)
    assert torch.equal(read_sheet(out.with_suffix(".png"), 100, 32, columns=10), samples(generator))


def test_the_generator_that_comes_back_is_the_one_in_the_file(tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    told: list[float] = []
    made = train(*few(), replace(TINY, epochs=1), out, on_step=told.append)
    assert told == [0.5, 1.0]
    assert not made.training and not any(p.requires_grad for p in made.parameters())
    assert all(torch.equal(t, made.state_dict()[n]) for n, t in Generator.load(out).state_dict().items())


def test_the_statistics_are_those_of_the_kept_weights(unbroken: Unbroken) -> None:
    """In evaluation the generator must make what it makes from a whole batch of its own."""
    generator = Generator.load(unbroken[0])
    y = torch.arange(500) % 10
    z = generator.draw(y, 3)
    still = generator(z, y)
    assert (generator.train()(z, y) - still).abs().mean() < 0.03


def test_interrupted_and_resumed_is_the_same_to_the_last_bit(unbroken: Unbroken, tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    torch.manual_seed(7)
    first = run(TINY, out, stop_after=1)
    assert [path.name for path in tmp_path.iterdir()] == ["g.safetensors.part"]
    torch.manual_seed(99)
    first += run(TINY, out, stop_after=2)
    assert first + run(TINY, out) == unbroken[1]
    for path in (out, out.with_suffix(".png")):
        assert path.read_bytes() == (unbroken[0].parent / path.name).read_bytes()
    assert not (tmp_path / "g.safetensors.part").exists()


def test_a_kept_checkpoint_lengthens_a_training(unbroken: Unbroken, tmp_path: Path) -> None:
    out, kept = tmp_path / "g.safetensors", tmp_path / "kept"
    run(replace(TINY, epochs=2), out, checkpoint=kept)
    assert kept.exists()
    assert run(TINY, out, checkpoint=kept) == unbroken[1][2:]
    assert out.read_bytes() == unbroken[0].read_bytes()
    before = kept.read_bytes()
    with pytest.raises(SettingError) as caught:
        run(replace(TINY, epochs=1), out, checkpoint=kept)
    assert str(caught.value) == f"epochs = 1: expected an integer ≥ 3, as {str(kept)!r} has them"
    assert kept.read_bytes() == before


def test_time_that_runs_out_leaves_weights_and_a_checkpoint(unbroken: Unbroken, tmp_path: Path) -> None:
    out, told = tmp_path / "g.safetensors", []
    train(*few(), TINY, out, minutes=1e-6, on_epoch=lambda *loss: told.append(loss))
    assert told == unbroken[1][:1]
    assert Generator.load(out).width == 4
    assert (tmp_path / "g.safetensors.part").exists()
    assert told + run(TINY, out) == unbroken[1]
    assert out.read_bytes() == unbroken[0].read_bytes()


def test_the_callers_draws_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run(replace(TINY, epochs=1), tmp_path / "g.safetensors")
    assert torch.equal(torch.rand(1), expected)


def test_another_seed_is_another_training(unbroken: Unbroken, tmp_path: Path) -> None:
    assert run(replace(TINY, seed=1), tmp_path / "g.safetensors", stop_after=1) != unbroken[1][:1]


def test_settings_and_data_must_be_the_same_to_go_on(tmp_path: Path) -> None:
    out, part = tmp_path / "g.safetensors", tmp_path / "g.safetensors.part"
    run(TINY, out, stop_after=1)
    before = part.read_bytes()
    message = f"checkpoint = {str(part)!r}: made with another {{}}; delete it to start anew"
    for changed in ({"seed": 6}, {"width": 5}, {"batch": 5, "augment": False}):
        with pytest.raises(DataError) as caught:
            train(*few(), replace(TINY, **changed), out)
        assert str(caught.value) == message.format(", ".join(changed))
    images, labels = few()
    with pytest.raises(DataError) as caught:
        train(images.flip(0), labels, TINY, out)
    assert str(caught.value) == message.format("data")
    assert part.read_bytes() == before and not out.exists()


def broken(whole: bytes) -> dict[str, bytes]:
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


def test_a_broken_checkpoint_is_one_line_and_stays_as_it_is(tmp_path: Path) -> None:
    out, part = tmp_path / "g.safetensors", tmp_path / "g.safetensors.part"
    run(TINY, out, stop_after=1)
    whole = part.read_bytes()
    out.write_bytes(b"earlier weights")
    for kind, content in broken(whole).items():
        assert content != whole, kind
        part.write_bytes(content)
        with pytest.raises(DataError) as caught:
            train(*few(), TINY, out)
        pattern = rf"checkpoint = '{re.escape(str(part))}': unreadable \(.+\); delete it to start anew"
        assert re.fullmatch(pattern, str(caught.value)), kind
        assert part.read_bytes() == content
        assert out.read_bytes() == b"earlier weights"
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("about", [None, {"sum": "0", "done": "1"}, {"settings": "[1]", "done": "1"}])
def test_a_foreign_checkpoint_is_one_line(about: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"weight.a": torch.zeros(1)}, tmp_path / "g.safetensors.part", about)
    with pytest.raises(DataError, match=r"^checkpoint = .*: unreadable \(.+\); delete it to start anew$"):
        train(*few(), TINY, tmp_path / "g.safetensors")


@pytest.mark.parametrize("augment", [False, True])
def test_a_few_steps_teach_both_players(augment: bool) -> None:
    """Each against an opponent that stands still: the losses fall, and nothing of the other one changes."""
    settings, draws = replace(TINY, augment=augment), torch.Generator().manual_seed(0)
    players = training_module._start(settings, torch.device("cpu"))
    real, labels = load_sample().images[:4], few()[1][:4]
    weights = [w.clone() for w in players.generator.parameters()]
    judged = [training_module._judge(players, real, labels, settings, draws) for _ in range(12)]
    assert sum(judged[-3:]) < 0.5 * sum(judged[:3])
    assert all(torch.equal(a, b) for a, b in zip(weights, players.generator.parameters(), strict=True))

    weights = [w.clone() for w in players.discriminator.parameters()]
    made = [training_module._make(players, labels, settings, draws) for _ in range(12)]
    assert sum(made[-3:]) < sum(made[:3]) - 3
    assert all(torch.equal(a, b) for a, b in zip(weights, players.discriminator.parameters(), strict=True))
    assert all(w.requires_grad for w in players.discriminator.parameters())


def test_the_average_follows() -> None:
    players = training_module._start(TINY, torch.device("cpu"))
    mean, now = players.average.start.weight, players.generator.start.weight
    with torch.no_grad():
        now.add_(1.0)
    players.follow(0.75)
    torch.testing.assert_close(mean, now - 0.75)
    players.follow(0)
    assert torch.equal(mean, now)


def test_losses_that_are_not_finite_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, part = tmp_path / "g.safetensors", tmp_path / "g.safetensors.part"
    run(TINY, out, stop_after=1)
    before = part.read_bytes()
    monkeypatch.setattr(training_module, "_judge", lambda *_: torch.tensor(math.nan))
    with pytest.raises(
        DataError, match=r"^loss = \(nan, .*\): not finite in epoch 2; try lower learning rates$"
    ):
        train(*few(), TINY, out)
    assert part.read_bytes() == before and not out.exists()


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
def test_wrong_data_is_one_line(images: Tensor, labels: Tensor, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        train(images, labels, TINY, tmp_path / "g.safetensors")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_wrong_place_or_time_is_one_line(tmp_path: Path) -> None:
    for out in (tmp_path / "g.png", tmp_path):
        with pytest.raises(SettingError) as caught:
            train(*few(), TINY, out)
        assert str(caught.value).startswith("out = ")
        assert str(caught.value).endswith(": expected a file name ending in .safetensors")
    for minutes in (0.0, -1.0, math.nan):
        with pytest.raises(SettingError, match=r"^minutes = .*: expected a number in \(0, ∞\)$"):
            train(*few(), TINY, tmp_path / "g.safetensors", minutes=minutes)
