"""Training of the evaluation network: seeded, and resumable after every epoch with the same result."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner import checks
from refiner.checkpoint import read_checkpoint, select_prefix, tensors_checksum, write_checkpoint
from refiner.errors import DataError
from refiner.evaluation.network import MIN_SIDE, EvaluationNetwork
from refiner.evaluation.noise_mixing import RATIOS, mix_with_noise
from refiner.weights import resolve_device

Identity = Mapping[str, object]
"""Settings and data of a training: a checkpoint of another identity is rejected."""


@dataclass(frozen=True)
class EvaluationTrainingSettings:
    """Settings of the training; the defaults are the paper's, or ours where it has none.

    Each batch is first resized to a random size between 28 pixels and its own, and some batches are made grey
    with grey noise, so that the network is trained on the sizes and channels that it accepts.

    >>> EvaluationTrainingSettings(epochs=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: epochs = 0: expected an integer ≥ 1
    """

    epochs: int = 20
    learning_rate: float = 1e-4
    decay: bool = False
    """Whether the learning rate falls linearly to zero."""
    batch: int = 128
    grey_share: float = 0.125
    """The fraction of batches that are made grey."""
    seed: int = 0

    def __post_init__(self) -> None:
        checks.integer("epochs", self.epochs, 1)
        checks.number("learning_rate", self.learning_rate, 0, 1, above=True)
        checks.flag("decay", self.decay)
        checks.integer("batch", self.batch, 1)
        checks.number("grey_share", self.grey_share, 0, 1)
        checks.integer("seed", self.seed, 0, 2**31 - 1)


def train(
    images: Tensor,
    settings: EvaluationTrainingSettings,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> EvaluationNetwork:
    """Train the network, write its weights and return it.

    After each epoch the whole state is written to `out` + ".part". A run with the same settings and images
    continues from it.

    Args:
        images: `[N, C, H, W]`, uint8 or floats in 0..1.
        settings: Epochs, learning rate and the like.
        out: The safetensors file for the weights.
        device: Where to train.
        on_epoch: Called after each epoch with its number and mean loss.

    Returns:
        The trained network, frozen.

    Raises:
        DataError: The images are invalid, the loss is not finite, or ".part" is of another run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder) / "own.safetensors"
    ...     network = train(torch.rand(1, 3, 28, 28), EvaluationTrainingSettings(epochs=1), out)
    ...     torch.equal(EvaluationNetwork.load(out).linear.weight, network.linear.weight)
    True
    """
    EvaluationNetwork.check_images(images)
    device = resolve_device(device)
    images = images if images.dtype == torch.uint8 else images.float()
    torch.manual_seed(settings.seed)
    network = EvaluationNetwork().to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    part = out.with_name(out.name + ".part")
    identity = {**asdict(settings), "data": [*images.shape, tensors_checksum(images)]}
    done = _resume(part, network, optimizer, identity) if part.exists() else 0
    for epoch in range(done, settings.epochs):
        loss = _train_epoch(network, optimizer, images, settings, epoch)
        if not math.isfinite(loss):
            raise DataError(
                f"loss = {loss}: not finite in epoch {epoch + 1}; try a lower learning rate",
                field="loss",
                value=loss,
                expected="a finite loss",
            )
        _save(part, network, optimizer, identity, epoch + 1)
        on_epoch(epoch + 1, loss)
    network.save(out)
    part.unlink(missing_ok=True)
    network.requires_grad_(False)
    return network.eval()


def _train_epoch(
    network: EvaluationNetwork,
    optimizer: torch.optim.Adam,
    images: Tensor,
    settings: EvaluationTrainingSettings,
    epoch: int,
) -> float:
    device = next(network.parameters()).device
    # Each epoch has its own random generators, so that a resumed run has the draws of an uninterrupted one.
    host = torch.Generator().manual_seed(settings.seed * 100_003 + epoch)
    draws = torch.Generator(device).manual_seed(settings.seed * 100_003 + epoch)
    order = torch.randperm(len(images), generator=host)
    total = torch.zeros((), device=device)
    steps = 0
    for index in torch.split(order, settings.batch):
        if settings.decay:
            progress = (epoch + steps / (len(RATIOS) * -(-len(images) // settings.batch))) / settings.epochs
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - progress)
        batch = _prepare(images[index.to(images.device)].to(device), settings, host)
        for ratio in RATIOS:
            mixed = mix_with_noise(batch, ratio, draws).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                predicted = network(mixed).float()
            loss = F.mse_loss(predicted, torch.full_like(predicted, ratio))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach()
            steps += 1
    return float(total / steps)


def _prepare(batch: Tensor, settings: EvaluationTrainingSettings, generator: torch.Generator) -> Tensor:
    """A batch as floats, at a random size, sometimes mirrored, sometimes grey."""
    images = batch.float() / 255 if batch.dtype == torch.uint8 else batch
    largest = min(images.shape[-2:])
    size = int(torch.randint(MIN_SIDE, largest + 1, (), generator=generator))
    if size < largest:
        images = F.interpolate(images, (size, size), mode="bilinear", antialias=True).clamp(0, 1)
    if torch.rand((), generator=generator) < 0.5:
        images = images.flip(-1)
    if torch.rand((), generator=generator) < settings.grey_share:
        images = images.mean(1, keepdim=True)
    return images


def _save(
    path: Path, network: EvaluationNetwork, optimizer: torch.optim.Adam, identity: Identity, done: int
) -> None:
    tensors = {f"weight.{name}": w.contiguous() for name, w in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{name}": value.contiguous() for name, value in state.items()}
    write_checkpoint(path, tensors, identity, done)


def _resume(path: Path, network: EvaluationNetwork, optimizer: torch.optim.Adam, identity: Identity) -> int:
    def restore(tensors: Mapping[str, Tensor]) -> None:
        network.load_state_dict(select_prefix("weight", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in select_prefix("adam", tensors).items():
            index, field = name.split(".")
            state.setdefault(int(index), {})[field] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

    return read_checkpoint(path, identity, restore)
