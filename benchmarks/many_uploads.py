"""Leakage of many uploads of the same images during a training.

    python benchmarks/many_uploads.py --data FOLDER --out FOLDER [--uploads 1 10 30] [--apart 39]
        [--attacks inverting linear learned] [--augment none carried fresh] [--batch 1]

LeNet on CIFAR-10 is trained undefended, ten clients × 128. Every `--apart` rounds (39 are one pass over the
data; 0 leaves the model unchanged) each victim uploads its gradient through the same defence, which keeps
its state. An attack uses all uploads of a victim at once, with labels known: InvertingGrad matches all of
them, with a weight of total variation and a learning rate chosen for each row on eight other batches;
attackers who learn take them as one input, and learn from images 0 to `--pool`. Victims are training images
from 40,000 on, tuning images from 41,000 on. With `--augment` every upload is of another crop or mirror
image, known to the attacker: with the noise of the original, "carried" through it as by `NoisyDataset`, or
with "fresh" noise of its own. Feeds docs/results/uploads.jsonl, which docs/results/federation.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import InvertingGradients, Observation, Reconstruction, Sweep, ThreatModel, make_attack
from refiner.attacks.simulation import SimulatedUploads, Simulator
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import Defense, NoDefense, Refiner, make_defense
from refiner.federation import FedAvg, FederatedSettings, Schedule
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.federation.schedule import derive_seed
from refiner.metrics import assign, identify, psnr
from refiner.models import make_model
from rows import append_rows

DEFENSES = ("refiner", "dp-gaussian:magnitude=1e-2,clip=none", "dp-gaussian:magnitude=1e-1,clip=none")
LABELS_KNOWN = ThreatModel(labels=True)
TUNING_BATCHES = 8
WEIGHTS, RATES = (1e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0), (0.003, 0.01, 0.03, 0.1)  # for InvertingGrad
FIRST_VICTIM, FIRST_TUNING = 40_000, 41_000


def model_states(
    task: Task, images: Tensor, labels: Tensor, count: int, apart: int, seed: int
) -> list[Tensor]:
    """The parameters of the model at every upload of a training."""
    values = get_parameters(task)
    if not apart:
        return [values] * count
    settings = FederatedSettings(rounds=max(1, (count - 1) * apart), clients=10, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    client_rows = list(torch.randperm(len(labels), generator=generator).tensor_split(settings.clients))
    engine = LocalClients(task, images, labels, Schedule(client_rows, settings), NoDefense())
    server, states = FedAvg(), [values]
    for number in range(1, (count - 1) * apart + 1):
        values = server.step(values, engine.mean_update(number), {})[0]
        set_parameters(task, values)
        if number % apart == 0:
            states.append(values)
    return states


def augment(x: Tensor, number: int) -> Tensor:
    """Copy `number` of images: shifted by up to four pixels and mirrored; copy 0 is the original."""
    generator = torch.Generator().manual_seed(number)
    rows, columns = (int(shift) for shift in torch.randint(0, 9, (2,), generator=generator))
    if number == 0:
        return x
    height, width = x.shape[-2:]
    padded = torch.nn.functional.pad(x.flatten(0, -4), (4, 4, 4, 4), mode="reflect")
    copy = padded[..., rows : rows + height, columns : columns + width].view_as(x)
    return copy.flip(-1) if number % 2 else copy


def uploads(
    task: Task, defense: Defense, models: list[Tensor], x: Tensor, y: Tensor, augmented: str, seed: int
) -> list[Observation]:
    """The observations of the same images, or of augmented copies, at every state of the model."""
    defense = defense.with_seeded_key(derive_seed(seed, "secret"))
    state = defense.init_state(y.numel())
    carried = augmented == "carried" and isinstance(defense, Refiner)
    noisy = defense.noisy(x.flatten(0, 1)).view_as(x) if carried else None
    observations = []
    for number, model in enumerate(models):
        set_parameters(task, model)
        update = defense.protect(
            task,
            x if augmented == "none" else augment(x, number),
            y,
            seed=None if defense.uses_secret_key else derive_seed(seed, "noise", number),
            state=state,
            noisy=None if noisy is None else augment(noisy, number),
        )
        observations.append(Observation.of(task, update, labels=y))
    return observations


def simulator(
    task: Task, defense: Defense, models: list[Tensor], images: Tensor, labels: Tensor, augmented: str
) -> Simulator:
    """The defence on public images: an upload at every state of the model, another secret each time."""

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        observations = uploads(task, defense, models, x, y, augmented, derive_seed(seed, "attacker"))
        return SimulatedUploads([observation.gradient for observation in observations], None)

    return Simulator(images, labels, protect)


def aligned(found: Tensor, truth: Tensor) -> Tensor:
    """Reconstructions `[V · B, …]`, those of a batch in the order that fits it best."""
    return (assign(found, truth) if truth.shape[1] > 1 else found).flatten(0, 1)


def invert(
    attack: InvertingGradients,
    observations: list[Observation],
    tuning: list[Observation],
    truth: Tensor,
    seed: int,
) -> tuple[Reconstruction, dict[str, float]]:
    """The reconstruction with the settings that suit the tuning images best, and these settings."""
    points = [{"total_variation": weight, "lr": lr} for weight, lr in product(WEIGHTS, RATES)]
    trials = Sweep(attack, points).reconstruct(tuning, threat=LABELS_KNOWN, seed=seed)
    scores = [psnr(aligned(chunk, truth), truth.flatten(0, 1)).mean() for chunk in trials.x.split(len(truth))]
    best = points[int(torch.stack(scores).argmax())]
    return replace(attack, **best).reconstruct(observations, threat=LABELS_KNOWN, seed=seed), best


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defenses", nargs="+", default=DEFENSES)
    parser.add_argument("--attacks", nargs="+", default=["inverting", "linear", "learned"])
    parser.add_argument("--uploads", type=int, nargs="+", default=[1, 10, 30])
    parser.add_argument("--apart", type=int, default=39)
    parser.add_argument("--victims", type=int, default=32, help="images")
    parser.add_argument("--batch", type=int, default=1, help="images of a client")
    parser.add_argument("--pool", type=int, default=20_000, help="public images, at most 40,000")
    parser.add_argument("--augment", nargs="+", default=["none"], choices=["none", "carried", "fresh"])
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.pool > FIRST_VICTIM:
        parser.error(f"--pool {options.pool}: images from {FIRST_VICTIM} on are victims")
    if "inverting" in options.attacks and options.augment != ["none"]:
        parser.error("--augment: inverting matches the same images in every upload; choose other --attacks")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels

    def take(first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = torch.arange(first, first + count).view(-1, options.batch)
        return images[rows].to(device).float().div(255), labels[rows].to(device)

    x, y = take(FIRST_VICTIM, options.victims)
    tuning_x, tuning_y = take(FIRST_TUNING, TUNING_BATCHES * options.batch)
    public = images[: options.pool].to(device).float().div(255), labels[: options.pool].to(device)
    torch.manual_seed(options.seed)
    task = Task(make_model("lenet").to(device), example=x[0])
    models = model_states(task, images, labels, max(options.uploads), options.apart, options.seed)
    combinations = product(options.defenses, options.uploads, options.augment, options.attacks)
    for name, count, augmented, attack in combinations:
        defense, states = make_defense(name), models[:count]
        observations = uploads(task, defense, states, x, y, augmented, options.seed)
        chosen: dict[str, float] = {}
        if attack == "inverting":
            inverting = InvertingGradients(iterations=options.iterations)
            tuning = uploads(task, defense, states, tuning_x, tuning_y, augmented, options.seed + 1)
            result, chosen = invert(inverting, observations, tuning, tuning_x, options.seed)
        else:
            simulate = simulator(task, defense, states, *public, augmented)
            result = make_attack(attack).reconstruct(
                observations, threat=LABELS_KNOWN, seed=options.seed, simulator=simulate
            )
        found, originals = aligned(result.x, x), x.flatten(0, 1)
        victim_psnr = psnr(found, originals)
        row = {
            "defense": name,
            "attack": attack,
            "uploads": count,
            "apart": options.apart,
            "copies": augmented,
            "batch": options.batch,
            "victims": len(originals),
            "PSNR": round(float(victim_psnr.mean()), 2),
            "±": round(1.96 * float(victim_psnr.std()) / len(victim_psnr) ** 0.5, 2),
            "top-1": identify(found, originals).top1,
            **chosen,
            "seconds": round(result.seconds, 1),
            "seed": options.seed,
        }
        print(json.dumps(row), flush=True)
        append_rows(options.out / "uploads.jsonl", [row])


if __name__ == "__main__":
    main()
