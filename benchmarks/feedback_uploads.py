"""What error feedback reveals: how near the mean of several uploads of one batch is to its real gradient.

    python benchmarks/feedback_uploads.py --data FOLDER --out FOLDER
        [--states initial NAME=WEIGHTS.safetensors …]

With error feedback the sum of a client's uploads is the sum of its targets but for the last residual. A
server that gets the same batch for the same model again and again could average. Relative distance of the
mean of the first N uploads from the real gradient, the mean over `--clients` batches of CIFAR-10 training
images from 40,000 on, LeNet. Feeds docs/results/feedback.jsonl, which docs/results/adaptive.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pixels import client_batches
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import NoDefense, Refiner
from refiner.models import make_model
from refiner.models.model_weights import load_model_weights
from rows import append_rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--states", nargs="+", default=["initial"], metavar="NAME=FILE")
    parser.add_argument("--uploads", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    x, y = client_batches(cifar10, options.clients, options.batch, device)
    for state in options.states:
        name, _, file = state.partition("=")
        torch.manual_seed(options.seed)
        network = make_model("lenet")
        if file:
            load_model_weights(network, Path(file))
        task = Task(network.to(device), example=x[0])
        real = NoDefense().protect(task, x, y).flat()
        for feedback in (False, True):
            defense = replace(Refiner().with_seeded_key(options.seed), error_feedback=feedback)
            memory, total = defense.init_state(), torch.zeros_like(real)
            row: dict[str, object] = {"state": name, "error feedback": feedback, "batch": options.batch}
            for number in range(1, max(options.uploads) + 1):
                total += defense.protect(task, x, y, state=memory).flat()
                if number in options.uploads:
                    distance = (total / number - real).norm(dim=1) / real.norm(dim=1)
                    row[f"distance, {number}"] = float(distance.mean())
            row["seed"] = options.seed
            print(json.dumps(row), flush=True)
            append_rows(options.out / "feedback.jsonl", [row])


if __name__ == "__main__":
    main()
