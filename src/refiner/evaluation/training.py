"""Training of the evaluation network: seeded, resumable after every epoch, the same result either way."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner import checks
from refiner.checkpoint import checksum, read_checkpoint, under, write_checkpoint
from refiner.errors import DataError
from refiner.evaluation.mixing import RATIOS, mix
from refiner.evaluation.network import SMALLEST, EvaluationNetwork
from refiner.weights import available

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Training:
    """Settings of one training; the defaults are the paper's, and ours where it is silent.

    Each batch is first brought to a random size between 28 pixels and its own, and one in eight is made
    grey with grey noise, so that the network meets the sizes and channels that it must take.

    >>> Training(epochs=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: epochs = 0: expected an integer ≥ 1
    """

    epochs: int = 20
    learning_rate: float = 1e-4
    decay: bool = False
    batch: int = 128
    grey_share: float = 0.125
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
    training: Training,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> EvaluationNetwork:
    """Train on images `[N, C, H, W]` (uint8, or float in 0..1), write `out` and return the network.

    After each epoch the whole state goes to `out` + ".part"; a run that finds it goes on from there, and
    must have the same settings and images.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder) / "own.safetensors"
    ...     network = train(torch.rand(1, 3, 28, 28), Training(epochs=1), out)
    ...     torch.equal(EvaluationNetwork.load(out).linear.weight, network.linear.weight)
    True
    """
    EvaluationNetwork.check_many(images)
    where = available(device)
    images = images if images.dtype == torch.uint8 else images.float()
    torch.manual_seed(training.seed)
    network = EvaluationNetwork().to(where)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=training.learning_rate)
    part = out.with_name(out.name + ".part")
    settings = {**asdict(training), "data": [*images.shape, checksum(images)]}
    done = _resume(part, network, optimizer, settings) if part.exists() else 0
    for epoch in range(done, training.epochs):
        loss = _epoch(network, optimizer, images, training, epoch)
        if not math.isfinite(loss):
            raise DataError(f"loss = {loss}: not finite in epoch {epoch + 1}; try a lower learning rate")
        _save(part, network, optimizer, settings, epoch + 1)
        on_epoch(epoch + 1, loss)
    network.save(out)
    part.unlink(missing_ok=True)
    network.requires_grad_(False)
    return network.eval()


def _epoch(
    network: EvaluationNetwork, optimizer: torch.optim.Adam, images: Tensor, training: Training, epoch: int
) -> float:
    device = next(network.parameters()).device
    # Each epoch has generators of its own, so that a resumed run draws what an unbroken one would.
    host = torch.Generator().manual_seed(training.seed * 100_003 + epoch)
    draws = torch.Generator(device).manual_seed(training.seed * 100_003 + epoch)
    order = torch.randperm(len(images), generator=host)
    total = torch.zeros((), device=device)
    steps = 0
    for index in torch.split(order, training.batch):
        if training.decay:
            progress = (epoch + steps / (len(RATIOS) * -(-len(images) // training.batch))) / training.epochs
            optimizer.param_groups[0]["lr"] = training.learning_rate * (1 - progress)
        batch = _prepare(images[index.to(images.device)].to(device), training, host)
        for ratio in RATIOS:
            mixed = mix(batch, ratio, draws).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                predicted = network(mixed).float()
            loss = F.mse_loss(predicted, torch.full_like(predicted, ratio))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach()
            steps += 1
    return float(total / steps)


def _prepare(batch: Tensor, training: Training, generator: torch.Generator) -> Tensor:
    """A batch in float, at a random size, sometimes mirrored, sometimes grey."""
    images = batch.float() / 255 if batch.dtype == torch.uint8 else batch
    largest = min(images.shape[-2:])
    size = int(torch.randint(SMALLEST, largest + 1, (), generator=generator))
    if size < largest:
        images = F.interpolate(images, (size, size), mode="bilinear", antialias=True).clamp(0, 1)
    if torch.rand((), generator=generator) < 0.5:
        images = images.flip(-1)
    if torch.rand((), generator=generator) < training.grey_share:
        images = images.mean(1, keepdim=True)
    return images


def _save(
    path: Path, network: EvaluationNetwork, optimizer: torch.optim.Adam, settings: Settings, done: int
) -> None:
    tensors = {f"weight.{name}": w.contiguous() for name, w in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{name}": value.contiguous() for name, value in state.items()}
    write_checkpoint(path, tensors, settings, done)


def _resume(path: Path, network: EvaluationNetwork, optimizer: torch.optim.Adam, settings: Settings) -> int:
    def restore(tensors: Mapping[str, Tensor]) -> None:
        network.load_state_dict(under("weight", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in under("adam", tensors).items():
            index, field = name.split(".")
            state.setdefault(int(index), {})[field] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

    return read_checkpoint(path, settings, restore)
