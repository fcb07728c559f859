"""Leakage of many uploads of the same images during a training.

    python benchmarks/many_uploads.py --data FOLDER --out FOLDER [--uploads 1 10 30] [--apart 39]

LeNet on CIFAR-10 is trained undefended, ten clients × 128. Every `--apart` rounds (39 are one pass over the
data; 0 leaves the model unchanged) each victim uploads its gradient through the same defence, which keeps
its state. InvertingGrad matches all uploads of a victim at once, with labels known; its weight of total
variation and learning rate are chosen for each row on eight other images. Victims are training images from
40,000 on, tuning images from 41,000 on. Feeds docs/results/uploads.jsonl, which docs/results/federation.md
shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import InvertingGradients, Observation, Sweep, ThreatModel
from refiner.audit import Tuning
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.federation import FedAvg, FederatedSettings, Schedule
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.federation.schedule import derive_seed
from refiner.metrics import psnr
from refiner.models import make_model
from rows import append_rows

DEFENSES = ("refiner", "dp-gaussian:magnitude=1e-2,clip=none", "dp-gaussian:magnitude=1e-1,clip=none")
LABELS_KNOWN = ThreatModel(labels=True)
TUNING_IMAGES = 8


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


def uploads(
    task: Task, defense: Defense, models: list[Tensor], x: Tensor, y: Tensor, seed: int
) -> list[Observation]:
    """The observations of the same images at every state of the model."""
    defense = defense.with_seeded_key(derive_seed(seed, "secret"))
    state = defense.init_state(len(x))
    ids, observations = torch.arange(len(x), device=x.device)[:, None], []
    for number, model in enumerate(models):
        set_parameters(task, model)
        noise_seed = None if defense.uses_secret_key else derive_seed(seed, "noise", number)
        update = defense.protect_checked(task, x, y, ids=ids, seed=noise_seed, state=state)
        observations.append(Observation.of(task, update, labels=y))
    return observations


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defenses", nargs="+", default=DEFENSES)
    parser.add_argument("--uploads", type=int, nargs="+", default=[1, 10, 30])
    parser.add_argument("--apart", type=int, default=39)
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels

    def take(first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count)
        return images[rows, None].to(device).float().div(255), labels[rows, None].to(device)

    x, y = take(40_000, options.victims)
    tuning_x, tuning_y = take(41_000, TUNING_IMAGES)
    torch.manual_seed(options.seed)
    task = Task(make_model("lenet").to(device), example=x[0])
    models = model_states(task, images, labels, max(options.uploads), options.apart, options.seed)
    attack = InvertingGradients(iterations=options.iterations)
    points = Tuning(tuning_x, tuning_y, total_variation=(1e-2, 1e-1, 3e-1, 1.0), lr=(0.03,)).grid(attack)
    for name in options.defenses:
        observations, tuning_observations = (
            uploads(task, make_defense(name), models, *pair, seed)
            for pair, seed in (((x, y), options.seed), ((tuning_x, tuning_y), options.seed + 1))
        )
        for count in options.uploads:
            tuning_reconstruction = Sweep(attack, points).reconstruct(
                tuning_observations[:count], threat=LABELS_KNOWN, seed=options.seed
            )
            scores = [
                psnr(chunk[:, 0], tuning_x[:, 0]).mean()
                for chunk in tuning_reconstruction.x.split(TUNING_IMAGES)
            ]
            best = points[int(torch.stack(scores).argmax())]
            reconstruction = replace(attack, **best).reconstruct(
                observations[:count], threat=LABELS_KNOWN, seed=options.seed
            )
            victim_psnr = psnr(reconstruction.x[:, 0], x[:, 0])
            row = {
                "defense": name,
                "uploads": count,
                "apart": options.apart,
                "victims": len(x),
                "PSNR": round(float(victim_psnr.mean()), 2),
                "±": round(1.96 * float(victim_psnr.std()) / len(victim_psnr) ** 0.5, 2),
                "iterations": options.iterations,
                **best,
                "seconds": round(reconstruction.seconds + tuning_reconstruction.seconds, 1),
                "seed": options.seed,
            }
            print(json.dumps(row), flush=True)
            append_rows(options.out / "uploads.jsonl", [row])


if __name__ == "__main__":
    main()
