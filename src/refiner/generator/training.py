"""Training of the generator: seeded, and resumable after every epoch with the same result."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.checkpoint import read_checkpoint, tensors_checksum, write_checkpoint
from refiner.core.precision import tensor_float32
from refiner.errors import DataError
from refiner.generator.augmentation import random_flip, shift_and_cut_out
from refiner.generator.discriminator import Discriminator
from refiner.generator.gan_state import GANState
from refiner.generator.network import SIDE, Generator
from refiner.generator.sample_grid import write_sample_grid
from refiner.models import recalibrate

# Batches from which the batch-norm statistics of the averaged generator are computed.
_CALIBRATION_BATCHES = 16


@dataclass(frozen=True)
class GANTrainingSettings:
    """Settings of a GAN training.

    The learning rates are constant and the result is a running average of the weights, so that a longer
    training begins like a shorter one: `epochs` may be raised, and a run may be stopped, at any time.

    >>> GANTrainingSettings(epochs=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: epochs = 0: expected an integer ≥ 1
    """

    epochs: int = 100
    batch: int = 256
    generator_rate: float = 2e-4
    discriminator_rate: float = 4e-4
    discriminator_steps: int = 2
    """Steps of the discriminator for each step of the generator."""
    average_decay: float = 0.999
    """Decay of the running average of the weights per step; lower at the start."""
    augment: bool = True
    """Whether images are augmented before they reach the discriminator."""
    latent: int = 128
    classes: int = 10
    width: int = 168
    discriminator_width: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "discriminator_steps", "latent", "classes", "width", "discriminator_width"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("batch", self.batch, 2)
        checks.number("generator_rate", self.generator_rate, 0, 1, above=True)
        checks.number("discriminator_rate", self.discriminator_rate, 0, 1, above=True)
        checks.number("average_decay", self.average_decay, 0, 1)
        checks.flag("augment", self.augment)
        checks.integer("seed", self.seed, 0, 2**31 - 1)


def train(
    images: Tensor,
    labels: Tensor,
    settings: GANTrainingSettings,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    minutes: float = math.inf,
    on_step: Callable[[float], None] = lambda epochs: None,
    on_epoch: Callable[[int, float, float], None] = lambda epoch, discriminator_loss, generator_loss: None,
) -> Generator:
    """Train a generator, write its weights and a grid of samples, and return it.

    After each epoch the whole state is written to a checkpoint, from which a later run continues with the
    same result.

    Args:
        images: uint8 `[N, 3, 32, 32]`, N ≥ 2.
        labels: `[N]`, below `settings.classes`.
        settings: Epochs, learning rates and the like.
        out: The safetensors file for the weights; the samples are written next to it as .png.
        device: Where to train.
        checkpoint: The file for the state, which is kept. If None it is `out` + ".part", removed when all
            epochs are done.
        minutes: Time limit. An epoch that would end later is not started; the weights so far are written and
            the checkpoint is kept.
        on_step: Called after each step with the number of epochs done, as a fraction.
        on_epoch: Called after each epoch with its number and the mean losses of discriminator and generator.

    Returns:
        The running average of the generator, in `eval` mode.

    Raises:
        DataError: Images or labels are invalid, a loss is not finite, or the checkpoint is of another run.

    >>> import tempfile
    >>> from refiner.data import load_data
    >>> data = load_data("sample")
    >>> tiny = GANTrainingSettings(epochs=1, batch=2, latent=4, classes=2, width=2, discriminator_width=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     generator = train(data.images[:2], data.labels[:2], tiny, Path(folder) / "own.safetensors")
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['own.png', 'own.safetensors']
    >>> generator(torch.zeros(1, 4), torch.tensor([1])).shape
    torch.Size([1, 3, 32, 32])
    """
    _check(images, labels, settings, out, minutes)
    start, device = time.monotonic(), torch.device(device)
    part = out.with_name(out.name + ".part") if checkpoint is None else checkpoint
    identity = {name: value for name, value in asdict(settings).items() if name != "epochs"}
    identity["data"] = [len(images), tensors_checksum(images, labels)]
    state = _initial_state(settings, device)
    done = read_checkpoint(part, identity, state.restore) if part.exists() else 0
    if done > settings.epochs:
        expected = f"an integer ≥ {done}, the number of epochs in {str(part)!r}"
        raise checks.wrong("epochs", settings.epochs, expected)
    pixels, targets = images.to(device), labels.to(device)
    epoch_seconds = 0.0
    with _fast_convolutions():
        while done < settings.epochs and (
            not done or time.monotonic() - start + epoch_seconds <= 60 * minutes
        ):
            epoch_start = time.monotonic()
            losses = _train_epoch(state, pixels, targets, settings, done, on_step)
            if not all(map(math.isfinite, losses)):
                raise DataError(
                    f"loss = {losses}: not finite in epoch {done + 1}; try lower learning rates",
                    field="loss",
                    value=losses,
                    expected="finite losses",
                )
            done += 1
            write_checkpoint(part, state.tensors(), identity, done)
            on_epoch(done, *losses)
            epoch_seconds = time.monotonic() - epoch_start
    generator = _finish(state.average, settings)
    write_sample_grid(out.with_suffix(".png"), generator)
    generator.save(out)
    if checkpoint is None and done == settings.epochs:
        part.unlink(missing_ok=True)
    return generator


def _check(images: Tensor, labels: Tensor, settings: GANTrainingSettings, out: Path, minutes: float) -> None:
    if out.suffix != ".safetensors" or out.is_dir():
        raise checks.wrong("out", str(out), "a file name ending in .safetensors")
    if minutes != math.inf:
        checks.number("minutes", minutes, 0, above=True)
    if images.dtype != torch.uint8 or images.shape[1:] != (3, SIDE, SIDE) or len(images) < 2:
        raise _wrong("images", images, f"torch.uint8 [N ≥ 2, 3, {SIDE}, {SIDE}]")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise _wrong("labels", labels, f"torch.int64 [{len(images)}]")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= settings.classes:
        expected = f"[0, {settings.classes - 1}]"
        raise DataError(
            f"labels in [{low}, {high}]: expected {expected}",
            field="labels",
            value=[low, high],
            expected=expected,
        )


def _wrong(name: str, tensor: Tensor, expected: str) -> DataError:
    message = f"{name}: {tensor.dtype} {list(tensor.shape)}, expected {expected}"
    return DataError(message, field=name, value=tensor, expected=expected)


def _initial_state(settings: GANTrainingSettings, device: torch.device) -> GANState:
    # On the CPU and without effect on the caller's random state: the same start on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        generator = Generator(settings.latent, settings.classes, settings.width)
        discriminator = Discriminator(settings.classes, settings.discriminator_width)
    rates = settings.generator_rate, settings.discriminator_rate
    return GANState.start(generator.to(device), discriminator.to(device), rates)


def _train_epoch(
    state: GANState,
    pixels: Tensor,
    targets: Tensor,
    settings: GANTrainingSettings,
    epoch: int,
    on_step: Callable[[float], None],
) -> tuple[float, float]:
    """Train for one epoch; returns the mean losses of the discriminator and the generator."""
    device = pixels.device
    # Each epoch has its own random generator, so that a resumed run has the draws of an uninterrupted one.
    draws = torch.Generator(device).manual_seed(settings.seed * 100_003 + epoch)
    size = min(settings.batch, len(pixels))
    steps = len(pixels) // size
    first_step = generator_step = epoch * -(-steps // settings.discriminator_steps)
    order = torch.randperm(len(pixels), generator=draws, device=device)
    discriminator_loss, generator_loss = torch.zeros(2, device=device)
    for step, index in enumerate(torch.split(order[: steps * size], size)):
        real = random_flip(pixels[index].float() / 255, draws)
        discriminator_loss += _discriminator_step(state, real, targets[index], settings, draws)
        if step % settings.discriminator_steps == 0:
            sampled = torch.randint(len(targets), (size,), generator=draws, device=device)
            generator_loss += _generator_step(state, targets[sampled], settings, draws)
            generator_step += 1
            # Early weights are poor, so the average decays faster at first.
            state.update_average(min(settings.average_decay, generator_step / (generator_step + 9)))
        on_step(epoch + (step + 1) / steps)
    return float(discriminator_loss / steps), float(generator_loss / (generator_step - first_step))


def _discriminator_step(
    state: GANState, real: Tensor, y: Tensor, settings: GANTrainingSettings, draws: torch.Generator
) -> Tensor:
    """One step of the discriminator with the hinge loss: real images above 1, generated ones below −1."""
    with _autocast(real.device):
        with torch.no_grad():
            fake = state.generator(_latents(y, settings, draws), y)
        images = torch.cat([real, fake])
        images = shift_and_cut_out(images, draws) if settings.augment else images
        real_scores, fake_scores = state.discriminator(images, y.repeat(2)).chunk(2)
    loss = torch.relu(1 - real_scores).mean() + torch.relu(1 + fake_scores).mean()
    return _optimize(state.discriminator_adam, loss)


def _generator_step(
    state: GANState, y: Tensor, settings: GANTrainingSettings, draws: torch.Generator
) -> Tensor:
    """One step of the generator, which raises the scores of its images."""
    state.discriminator.requires_grad_(False)
    with _autocast(y.device):
        fake = state.generator(_latents(y, settings, draws), y)
        fake = shift_and_cut_out(fake, draws) if settings.augment else fake
        loss = -state.discriminator(fake, y).mean()
    loss = _optimize(state.generator_adam, loss)
    state.discriminator.requires_grad_(True)
    return loss


def _optimize(adam: torch.optim.Adam, loss: Tensor) -> Tensor:
    adam.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    adam.step()
    return loss.detach()


def _latents(y: Tensor, settings: GANTrainingSettings, draws: torch.Generator) -> Tensor:
    return torch.randn(len(y), settings.latent, generator=draws, device=y.device)


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@contextmanager
def _fast_convolutions() -> Iterator[None]:
    """Allow TF32, and let cuDNN choose the fastest convolutions: every batch has the same shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with tensor_float32(True):
            yield
    finally:
        torch.backends.cudnn.benchmark = before


class _EveryClass(nn.Module):
    """The generator as a function of latents alone, cycling through the classes."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, z: Tensor) -> Tensor:
        y = torch.arange(len(z), device=z.device) % self.generator.classes
        return self.generator(z, y)  # type: ignore[no-any-return]


def _finish(average: Generator, settings: GANTrainingSettings) -> Generator:
    """The averaged generator as its file will contain it, with batch-norm statistics of its own images."""
    device = average.start.weight.device
    with torch.no_grad():
        for weight in average.parameters():
            weight.copy_(weight.half())
    draws = torch.Generator(device).manual_seed(settings.seed)
    shape = settings.batch, settings.latent
    recalibrate(
        _EveryClass(average),
        (torch.randn(shape, generator=draws, device=device) for _ in range(_CALIBRATION_BATCHES)),
    )
    return average.eval()
