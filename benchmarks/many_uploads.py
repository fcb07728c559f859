"""What many uploads of the same single images show in a training, whose model changes in between.

    python benchmarks/many_uploads.py --data FOLDER --out FOLDER [--uploads 1 10 30] [--apart 39]

LeNet on CIFAR-10 is trained undefended, ten clients × 128; every `--apart` rounds (39 are a pass over the
data, 0 leaves the model as it is) each victim uploads its gradient through each defence, which is one and the
same all along and remembers what it remembers. InvertingGrad matches all of a victim's uploads at once, its
weight of total variation and rate chosen for each row on eight other images. Victims and others are
training images from 40,000 and 41,000 on, labels known.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import InvertingGradients, Observation, Sweep, ThreatModel
from refiner.audit import Tuning
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.federation import FedAvg, Schedule, Training
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.federation.schedule import derived
from refiner.metrics import psnr
from refiner.models import build

DEFENSES = ("refiner", "dp-gaussian:magnitude=1e-2,clip=none", "dp-gaussian:magnitude=1e-1,clip=none")
KNOWN = ThreatModel(labels=True)
OTHERS = 8


def states(task: Task, images: Tensor, labels: Tensor, count: int, apart: int, seed: int) -> list[Tensor]:
    """The model's parameters at every upload of a training."""
    values = get_parameters(task)
    if not apart:
        return [values] * count
    training = Training(rounds=max(1, (count - 1) * apart), clients=10, seed=seed)
    draws = torch.Generator().manual_seed(seed)
    parts = list(torch.randperm(len(labels), generator=draws).tensor_split(training.clients))
    engine = LocalClients(task, images, labels, Schedule(parts, training), NoDefense())
    server, found = FedAvg(), [values]
    for number in range(1, (count - 1) * apart + 1):
        values = server.step(values, engine.moves(number), {})[0]
        set_parameters(task, values)
        if number % apart == 0:
            found.append(values)
    return found


def uploads(
    task: Task, defense: Defense, models: list[Tensor], x: Tensor, y: Tensor, seed: int
) -> list[Observation]:
    """What the server sees of the same images in every state."""
    kept = defense.for_training(len(x), derived(seed, "secret"))
    ids, seen = torch.arange(len(x), device=x.device)[:, None], []
    for number, model in enumerate(models):
        set_parameters(task, model)
        drawn = None if kept.keyed else derived(seed, "noise", number)
        update = kept.protect_checked(task, x, y, ids=ids, seed=drawn)
        seen.append(Observation.of(task, update, labels=y))
    return seen


def main() -> None:
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
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    images, labels = load_dataset("cifar10", "train", options.data)

    def take(first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count)
        return images[rows, None].to(device).float().div(255), labels[rows, None].to(device)

    x, y = take(40_000, options.victims)
    other, other_y = take(41_000, OTHERS)
    torch.manual_seed(options.seed)
    task = Task(build("lenet").to(device), example=x[0])
    models = states(task, images, labels, max(options.uploads), options.apart, options.seed)
    attack = InvertingGradients(iterations=options.iterations)
    points = Tuning(other, other_y, total_variation=(1e-2, 1e-1, 3e-1, 1.0), lr=(0.03,)).grid(attack)
    for name in options.defenses:
        seen, tried = (
            uploads(task, make_defense(name), models, *pair, seed)
            for pair, seed in (((x, y), options.seed), ((other, other_y), options.seed + 1))
        )
        for count in options.uploads:
            rebuilt = Sweep(attack, points).reconstruct(tried[:count], threat=KNOWN, seed=options.seed)
            scores = [psnr(part[:, 0], other[:, 0]).mean() for part in rebuilt.x.split(OTHERS)]
            best = points[int(torch.stack(scores).argmax())]
            found = replace(attack, **best).reconstruct(seen[:count], threat=KNOWN, seed=options.seed)
            each = psnr(found.x[:, 0], x[:, 0])
            row = {
                "defense": name,
                "uploads": count,
                "apart": options.apart,
                "victims": len(x),
                "PSNR": round(float(each.mean()), 2),
                "±": round(1.96 * float(each.std()) / len(each) ** 0.5, 2),
                "iterations": options.iterations,
                **best,
                "seconds": round(found.seconds + rebuilt.seconds, 1),
                "seed": options.seed,
            }
            print(json.dumps(row), flush=True)
            with (options.out / "uploads.jsonl").open("a") as log:
                print(json.dumps(row), file=log)


if __name__ == "__main__":
    main()
