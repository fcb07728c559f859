"""A malicious server that folds images (`folds`): how few uploads of a batch give it away.

    python benchmarks/folded_features.py --data FOLDER --out FOLDER [--defenses none refiner …]
        [--uploads 1 2 3 4 5 6] [--victims 64] [--batch 16] [--model lenet]

Victims are CIFAR-100 training images from 40,000 on, in batches with different labels, known to the server;
public images are 0 to 2,999. One row for each defence and number of uploads in folds.jsonl, which
docs/results/adaptive.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pixels import pixels
from refiner.attacks import Folds, ThreatModel
from refiner.audit import audit
from refiner.core import Task
from refiner.data import load_data
from refiner.metrics import blind_guess
from refiner.models import build_model
from rows import append_rows

FIRST_VICTIM, POOL = 40_000, 3_000
GRANTED = ThreatModel(labels=True, changed_model=True)
DEFENSES = ["none", "refiner", "refiner-light", "refiner:search=never"]


def distinct_batches(labels: Tensor, first: int, count: int, batch: int) -> Tensor:
    """The numbers `[count, batch]` of images from `first` on, with different labels in each batch."""
    batches: list[list[int]] = []
    number = first
    while len(batches) < count:
        own: dict[int, int] = {}
        while len(own) < batch:
            own.setdefault(int(labels[number]), number)
            number += 1
        batches.append(list(own.values()))
    return torch.tensor(batches)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defenses", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--uploads", nargs="+", type=int, default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--victims", type=int, default=64, help="images")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="lenet", metavar="NAME:SETTING=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    cifar100 = load_data("cifar100", "train", root=options.data)
    numbers = distinct_batches(cifar100.labels, FIRST_VICTIM, options.victims // options.batch, options.batch)
    images, y = pixels(cifar100.images[numbers.flatten()], "cpu"), cifar100.labels[numbers]
    x = images.unflatten(0, numbers.shape)
    public = pixels(cifar100.images[:POOL], "cpu")
    colour = float(blind_guess(images, public).scores["own colour"].mean())
    torch.manual_seed(options.seed)
    task = Task(build_model(options.model, classes=cifar100.classes, input_shape=(3, 32, 32)), example=x[0])
    for defense in options.defenses:
        for uploads in options.uploads:
            result = audit(
                task,
                x,
                y,
                defense=defense,
                attack=Folds(uploads=uploads),
                metrics=["identification"],
                threat=GRANTED,
                pool=(public, cifar100.labels[:POOL]),
                seed=options.seed,
                control=False,
            )
            row: dict[str, object] = {
                "model": options.model,
                "batch": options.batch,
                "defense": defense,
                "uploads": uploads,
                "victims": len(images),
                "PSNR": result.means["psnr"].value,
                "top-1": result.means["top1_pixels"].value,
                "candidates": result.candidates,
                "own mean colour": colour,
                "seed": options.seed,
                "seconds": round(result.seconds.attack, 1),
            }
            print(json.dumps(row, ensure_ascii=False), flush=True)
            append_rows(options.out / "folds.jsonl", [row])


if __name__ == "__main__":
    main()
