"""Training of an attacker's network: AdamW with a one-cycle rate, seeded, resumable after every epoch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks.matching.checkpoint import fingerprint, read_same_attack, write_attack_state
from refiner.attacks.observation import Observation
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import Simulator
from refiner.checkpoint import select_prefix

# The part of the steps in which the rate rises, and the fractions of its maximum at both ends.
_RISING, _FIRST, _LAST = 0.3, 1 / 25, 1 / 25e4


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    Args:
        epochs: Passes over the samples.
        batch: Samples in a step.
        lr: The greatest learning rate of AdamW.

    Raises:
        SettingError: A setting is out of range.

    >>> TrainingSettings(epochs=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: epochs = 0: expected an integer ≥ 1
    """

    epochs: int = 10
    batch: int = 512
    lr: float = 1e-3

    def __post_init__(self) -> None:
        checks.integer("epochs", self.epochs, 1)
        checks.integer("batch", self.batch, 1)
        checks.number("lr", self.lr, 0, above=True)


class TrainingState:
    """The state of a training on disk, and later the result of the attack that the network was trained for.

    Args:
        path: The file, or None. An existing one is loaded.
        fingerprints: One for each thing that the state depends on, by name.

    Raises:
        DataError: The file is damaged, or of another attack.

    >>> TrainingState(None, {}).epochs
    0
    """

    def __init__(self, path: Path | None, fingerprints: Mapping[str, str]) -> None:
        self.path = path
        self.fingerprints = fingerprints
        self.epochs = 0
        """Finished epochs."""
        self._tensors: dict[str, Tensor] = {}
        if path is not None and path.exists():
            position, self._tensors = read_same_attack(path, fingerprints)
            self.epochs = position.get("epochs", 0)

    def restore(self, network: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Set network and optimizer to the state after the last finished epoch."""
        if not self.epochs:
            return
        network.load_state_dict(select_prefix("network", self._tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in select_prefix("optimizer", self._tensors).items():
            index, _, field = name.partition(".")
            state.setdefault(int(index), {})[field] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self._tensors = {}

    def save(self, network: nn.Module, optimizer: torch.optim.AdamW, epochs: int) -> None:
        """Write network and optimizer after `epochs` finished epochs, if there is a path."""
        self.epochs = epochs
        if self.path is None:
            return
        tensors = {f"network.{name}": t for name, t in network.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": t for name, t in state.items()}
        write_attack_state(self.path, self.fingerprints, {"epochs": epochs}, tensors)

    def finish(self, results: Mapping[str, Tensor]) -> None:
        """Write the result of the attack in place of the network, if there is a path."""
        if self.path is not None:
            write_attack_state(
                self.path, self.fingerprints, {}, {f"result.{name}": t for name, t in results.items()}
            )

    def results(self, device: torch.device) -> dict[str, Tensor]:
        """Return the result of a finished attack by name; empty if it is not finished."""
        return {name: t.to(device) for name, t in select_prefix("result", self._tensors).items()}


def one_cycle(done: float) -> float:
    """Return the learning rate as a fraction of its maximum after a fraction `done` of the training.

    It rises along a cosine for three tenths of the steps, then falls almost to zero (Smith and Topin,
    "Super-Convergence", 2019; the defaults of `torch.optim.lr_scheduler.OneCycleLR`).

    >>> [round(one_cycle(done), 3) for done in (0.0, 0.3, 0.65, 1.0)]
    [0.04, 1.0, 0.5, 0.0]
    """
    begin, end, part = (
        (_FIRST, 1.0, done / _RISING) if done < _RISING else (1.0, _LAST, (done - _RISING) / (1 - _RISING))
    )
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * part))


def train_network(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    samples: int,
    settings: TrainingSettings,
    *,
    seed: int,
    state: TrainingState,
    on_samples: Callable[[int], None] = lambda done: None,
) -> bool:
    """Train a network from the last finished epoch on.

    The order of the samples depends on the seed and the epoch only, so that a resumed training has the steps
    of an uninterrupted one.

    Args:
        network: The network, on its device.
        loss: Returns the mean loss of the samples with these numbers, a tensor `[n]` on the CPU.
        samples: Number of samples.
        settings: Epochs, batch and learning rate.
        seed: Seed of the order.
        state: Where finished epochs are saved.
        on_samples: Called after some steps with the samples done in all epochs.

    Returns:
        Whether every loss was finite; the training stops at the end of an epoch in which one was not.

    >>> network = nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> def loss(index):
    ...     return (network(x[index]) - 3 * x[index]).square().mean()
    >>> settings = TrainingSettings(epochs=60, batch=16, lr=0.1)
    >>> train_network(network, loss, 64, settings, seed=0, state=TrainingState(None, {}))
    True
    >>> abs(network.weight.item() - 3) < 0.3
    True
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, fused=True)
    state.restore(network, optimizer)
    steps = -(-samples // settings.batch)
    network.train()
    for epoch in range(state.epochs, settings.epochs):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))
        total = torch.zeros((), device=parameters[0].device)
        for step, index in enumerate(torch.split(order, settings.batch)):
            done = (epoch * steps + step) / (settings.epochs * steps)
            optimizer.param_groups[0]["lr"] = settings.lr * one_cycle(done)
            optimizer.zero_grad(set_to_none=True)
            value = loss(index)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += value.detach()
            on_samples(epoch * samples + min((step + 1) * settings.batch, samples))
        # Once an epoch: reading the value makes the CPU wait for the GPU.
        if not math.isfinite(float(total)):
            return False
        state.save(network, optimizer, epoch + 1)
    network.eval()
    return True


def attack_fingerprints(
    settings: Mapping[str, object],
    observations: Sequence[Observation],
    simulator: Simulator,
    options: RunOptions,
) -> dict[str, str]:
    """Return fingerprints of all that a learning attack depends on, by name; nothing without a state file.

    Args:
        settings: Those of the attack.
        observations: The victims' uploads.
        simulator: Public images; the defence shows in the victims' uploads.
        options: Seed and state file.
    """
    if options.resume is None:
        return {}
    uploads = [t for o in observations for t in (o.gradient, *o.parameters.values())]
    granted = [o.labels for o in observations if o.labels is not None]
    return {
        "settings": fingerprint(settings),
        "seed": fingerprint(options.seed),
        "deterministic": fingerprint(options.deterministic),
        "uploads": fingerprint(tensors=uploads),
        "labels": fingerprint(len(granted), tensors=granted),
        "public images": fingerprint(tensors=[simulator.images, simulator.labels]),
    }
