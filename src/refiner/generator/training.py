"""Training of the generator: seeded, resumable after every epoch, the same result either way."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.checkpoint import checksum, read_checkpoint, write_checkpoint
from refiner.core.precision import tensor_float32
from refiner.errors import DataError
from refiner.generator.augmentation import disturb, mirror
from refiner.generator.discriminator import Discriminator
from refiner.generator.network import SIDE, Generator
from refiner.generator.players import Players
from refiner.generator.samples import write_samples
from refiner.models import recalibrate

_SETTLING = 16
"""Batches from which the kept generator's batch-norm statistics are taken."""


@dataclass(frozen=True)
class Training:
    """Settings of one training.

    The learning rates are constant and the kept weights are a running mean, so that a longer training
    begins as a shorter one: `epochs` may be raised, or a run be stopped, at will.

    >>> Training(epochs=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: epochs = 0: expected an integer ≥ 1
    """

    epochs: int = 100
    batch: int = 256
    generator_rate: float = 2e-4
    discriminator_rate: float = 4e-4
    judgings: int = 2
    """Steps of the discriminator to one of the generator."""
    mean: float = 0.999
    """Share of itself that the running mean keeps at each step, less at the start."""
    augment: bool = True
    latent: int = 128
    classes: int = 10
    width: int = 168
    discriminator_width: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "judgings", "latent", "classes", "width", "discriminator_width"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("batch", self.batch, 2)
        checks.number("generator_rate", self.generator_rate, 0, 1, above=True)
        checks.number("discriminator_rate", self.discriminator_rate, 0, 1, above=True)
        checks.number("mean", self.mean, 0, 1)
        checks.flag("augment", self.augment)
        checks.integer("seed", self.seed, 0, 2**31 - 1)


def train(
    images: Tensor,
    labels: Tensor,
    training: Training,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    minutes: float = math.inf,
    on_step: Callable[[float], None] = lambda epochs: None,
    on_epoch: Callable[[int, float, float], None] = lambda epoch, judging, making: None,
) -> Generator:
    """Train on images [N, 3, 32, 32] (uint8) and labels [N], write `out` and return the generator.

    Beside `out` (.safetensors) goes a sheet of samples (.png). After each epoch the whole state goes to
    `checkpoint`; a run that finds it goes on from there. Left out, it is `out` + ".part", removed when all
    epochs are done. The epoch that would end after `minutes` is not begun: what there is then is written, and
    the checkpoint stays. `on_step` is told the epochs done as a fraction, `on_epoch` an epoch's mean losses.

    >>> import tempfile
    >>> from refiner.data import open_data
    >>> data = open_data("sample")
    >>> tiny = Training(epochs=1, batch=2, latent=4, classes=2, width=2, discriminator_width=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     generator = train(data.images[:2], data.labels[:2], tiny, Path(folder) / "own.safetensors")
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['own.png', 'own.safetensors']
    >>> generator(torch.zeros(1, 4), torch.tensor([1])).shape
    torch.Size([1, 3, 32, 32])
    """
    _check(images, labels, training, out, minutes)
    begin, where = time.monotonic(), torch.device(device)
    part = out.with_name(out.name + ".part") if checkpoint is None else checkpoint
    settings = {name: value for name, value in asdict(training).items() if name != "epochs"}
    settings["data"] = [len(images), checksum(images, labels)]
    players = _start(training, where)
    done = read_checkpoint(part, settings, players.restore) if part.exists() else 0
    if done > training.epochs:
        raise checks.wrong("epochs", training.epochs, f"an integer ≥ {done}, as {str(part)!r} has them")
    pixels, targets = images.to(where), labels.to(where)
    last = 0.0
    with _quick():
        while done < training.epochs and (not done or time.monotonic() - begin + last <= 60 * minutes):
            start = time.monotonic()
            losses = _epoch(players, pixels, targets, training, done, on_step)
            if not all(map(math.isfinite, losses)):
                raise DataError(f"loss = {losses}: not finite in epoch {done + 1}; try lower learning rates")
            done += 1
            write_checkpoint(part, players.tensors(), settings, done)
            on_epoch(done, *losses)
            last = time.monotonic() - start
    generator = _finish(players.average, training)
    write_samples(out.with_suffix(".png"), generator)
    generator.save(out)
    if checkpoint is None and done == training.epochs:
        part.unlink(missing_ok=True)
    return generator


def _check(images: Tensor, labels: Tensor, training: Training, out: Path, minutes: float) -> None:
    if out.suffix != ".safetensors" or out.is_dir():
        raise checks.wrong("out", str(out), "a file name ending in .safetensors")
    if minutes != math.inf:
        checks.number("minutes", minutes, 0, above=True)
    if images.dtype != torch.uint8 or images.shape[1:] != (3, SIDE, SIDE) or len(images) < 2:
        raise DataError(
            f"images: {images.dtype} {list(images.shape)}, expected torch.uint8 [N ≥ 2, 3, {SIDE}, {SIDE}]"
        )
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise DataError(f"labels: {labels.dtype} {list(labels.shape)}, expected torch.int64 [{len(images)}]")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= training.classes:
        raise DataError(f"labels in [{low}, {high}]: expected [0, {training.classes - 1}]")


def _start(training: Training, device: torch.device) -> Players:
    # On the CPU and apart from the caller's draws: the same start on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        generator = Generator(training.latent, training.classes, training.width)
        discriminator = Discriminator(training.classes, training.discriminator_width)
    rates = training.generator_rate, training.discriminator_rate
    return Players.start(generator.to(device), discriminator.to(device), rates)


def _epoch(
    players: Players,
    pixels: Tensor,
    targets: Tensor,
    training: Training,
    epoch: int,
    on_step: Callable[[float], None],
) -> tuple[float, float]:
    """One pass over the images; the mean losses of the discriminator and the generator."""
    device = pixels.device
    # Each epoch has a generator of its own, so that a resumed run draws what an unbroken one would.
    draws = torch.Generator(device).manual_seed(training.seed * 100_003 + epoch)
    size = min(training.batch, len(pixels))
    steps = len(pixels) // size
    made = epoch * -(-steps // training.judgings)
    order = torch.randperm(len(pixels), generator=draws, device=device)
    judging, making = torch.zeros(2, device=device)
    begun = made
    for step, index in enumerate(torch.split(order[: steps * size], size)):
        real = mirror(pixels[index].float() / 255, draws)
        judging += _judge(players, real, targets[index], training, draws)
        if step % training.judgings == 0:
            chosen = torch.randint(len(targets), (size,), generator=draws, device=device)
            making += _make(players, targets[chosen], training, draws)
            made += 1
            # Early weights are poor, so the mean forgets them sooner.
            players.follow(min(training.mean, made / (made + 9)))
        on_step(epoch + (step + 1) / steps)
    return float(judging / steps), float(making / (made - begun))


def _judge(players: Players, real: Tensor, y: Tensor, training: Training, draws: torch.Generator) -> Tensor:
    """A step of the discriminator: hinge loss, real above 1 and made below −1."""
    with _narrow(real.device):
        with torch.no_grad():
            fake = players.generator(_latents(y, training, draws), y)
        both = torch.cat([real, fake])
        both = disturb(both, draws) if training.augment else both
        high, low = players.discriminator(both, y.repeat(2)).chunk(2)
    loss = torch.relu(1 - high).mean() + torch.relu(1 + low).mean()
    return _step(players.discriminator_adam, loss)


def _make(players: Players, y: Tensor, training: Training, draws: torch.Generator) -> Tensor:
    """A step of the generator: what it makes shall score high."""
    players.discriminator.requires_grad_(False)
    with _narrow(y.device):
        fake = players.generator(_latents(y, training, draws), y)
        fake = disturb(fake, draws) if training.augment else fake
        loss = -players.discriminator(fake, y).mean()
    told = _step(players.generator_adam, loss)
    players.discriminator.requires_grad_(True)
    return told


def _step(adam: torch.optim.Adam, loss: Tensor) -> Tensor:
    adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    adam.step()
    return loss.detach()


def _latents(y: Tensor, training: Training, draws: torch.Generator) -> Tensor:
    return torch.randn(len(y), training.latent, generator=draws, device=y.device)


def _narrow(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@contextmanager
def _quick() -> Iterator[None]:
    """TF32, and convolutions timed once to take the fastest: every batch has the same shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with tensor_float32(True):
            yield
    finally:
        torch.backends.cudnn.benchmark = before


class _EveryClass(nn.Module):
    """The generator as a function of latents alone, the classes taking turns."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, z: Tensor) -> Tensor:
        y = torch.arange(len(z), device=z.device) % self.generator.classes
        return self.generator(z, y)  # type: ignore[no-any-return]


def _finish(average: Generator, training: Training) -> Generator:
    """The average as its file will hold it, with batch-norm statistics of its own."""
    device = average.start.weight.device
    with torch.no_grad():
        for weight in average.parameters():
            weight.copy_(weight.half())
    draws = torch.Generator(device).manual_seed(training.seed)
    shape = training.batch, training.latent
    recalibrate(
        _EveryClass(average),
        (torch.randn(shape, generator=draws, device=device) for _ in range(_SETTLING)),
    )
    return average.eval()
