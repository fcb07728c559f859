"""Leakage of a securely aggregated mean: PSNR of InvertingGrad on the mean and on single uploads.

    python benchmarks/secure_view.py --data FOLDER [--clients 10] [--batch 1 128] [--rounds 20 1] [--out FILE]

The server sees the mean over the clients, which is the gradient of one batch of clients × batch images.
LeNet at initialisation, CIFAR-10 training images from 40,000 on; reconstructions are assigned to originals
in the attacker's favour. Feeds docs/results/secure-view.jsonl, which docs/secure-aggregation.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from refiner.attacks import InvertingGradients, Observation
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import NoDefense
from refiner.federation.secure import server_view
from refiner.metrics import assign, blind_guess, psnr
from refiner.models import make_model
from rows import append_rows

FIRST = 40_000
VIEWS = ("single upload", "securely aggregated mean")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 128])
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[20, 1], help="number of rounds for each batch size"
    )
    parser.add_argument("--total-variation", type=float, nargs="+", default=[1e-3, 1e-2, 1e-1])
    parser.add_argument("--iterations", type=int, default=4000)
    parser.add_argument("--views", nargs="+", default=list(VIEWS), choices=VIEWS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels
    public = images[:10_000].to(device).float().div(255)
    result_rows = []
    for batch, rounds in zip(options.batch, options.rounds, strict=True):
        victims = rounds * options.clients
        rows = slice(FIRST, FIRST + victims * batch)
        x = images[rows].to(device).float().div(255).view(victims, batch, *images.shape[1:])
        y = labels[rows].to(device).view(victims, batch)
        torch.manual_seed(0)
        task = Task(make_model("lenet").to(device), example=x[0, :1])
        update = NoDefense().protect(task, x, y)
        single = Observation.of(task, update)
        mean = replace(single, gradient=server_view(update, options.clients), samples=options.clients * batch)
        for view, observation in zip(VIEWS, (single, mean), strict=True):
            if view not in options.views:
                continue
            truth = x.view(observation.victims, observation.samples, *x.shape[2:])
            for weight in options.total_variation:
                attack = InvertingGradients(iterations=options.iterations, total_variation=weight)
                reconstruction = attack.reconstruct(observation)
                matched = assign(reconstruction.x, truth).flatten(0, 1)
                originals = truth.flatten(0, 1)
                result_rows.append(
                    {
                        "server sees": view,
                        "clients": options.clients,
                        "batch": batch,
                        "images": len(originals),
                        "total_variation": weight,
                        "iterations": options.iterations,
                        "PSNR": round(float(psnr(matched, originals).mean()), 2),
                        "blind guess": round(float(blind_guess(originals, public).best.mean()), 2),
                        "seconds": round(reconstruction.seconds, 1),
                    }
                )
                print(json.dumps(result_rows[-1]), flush=True)
    if options.out:
        append_rows(options.out, result_rows, seed=0)


if __name__ == "__main__":
    main()
