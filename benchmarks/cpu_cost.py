"""What a client-round of Refiner costs on one CPU core, and how close its upload comes to the real gradient.

    python benchmarks/cpu_cost.py --out FOLDER [--iterations 4 6 8 12 24] [--bfloat16]

LeNet, batches of 128 CIFAR-10 training images from 40,000 on. The time is the least CPU time of several
calls on one thread, so that it hardly depends on what else runs on the machine. Distance is
‖upload − g‖ / ‖g‖, the mean of two batches. Feeds docs/results/cpu.jsonl, which docs/results/cost.md shows.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from refiner.core import Task, flatten, gradients
from refiner.data import load_data
from refiner.defenses import Defense, NoDefense, Refiner
from refiner.models import LeNet
from rows import append_rows

BATCH, FIRST, CALLS = 128, 40_000, 4


def measure(name: str, defense: Defense, dtype: torch.dtype) -> dict[str, object]:
    """The time of a call in milliseconds, and the distance of its upload."""
    data = load_data("cifar10")
    chosen = slice(FIRST, FIRST + 2 * BATCH)
    images = (data.images[chosen] / 255).to(dtype).split(BATCH)
    labels = data.labels[chosen].split(BATCH)
    torch.manual_seed(0)
    task = Task(LeNet().to(dtype), example=images[0][:2])
    seconds, distances = [], []
    for call in range(CALLS):
        x, y = images[call % 2], labels[call % 2]
        start = time.process_time()
        update = defense.protect(task, x, y, state=defense.init_state())
        seconds.append(time.process_time() - start)
        real = flatten(gradients(task, x[None], y[None])).float()
        distances.append(float((update.flat().float() - real).norm() / real.norm()))
    return {
        "defense": name,
        "dtype": str(dtype).removeprefix("torch."),
        "ms": round(1000 * min(seconds), 1),
        "distance": round(sum(distances) / CALLS, 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, nargs="+", default=[4, 6, 8, 12, 24])
    parser.add_argument("--bfloat16", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if options.bfloat16 else torch.float32
    secret = bytes(32)  # public: the same noise in every run
    defenses: dict[str, Defense] = {
        "none": NoDefense(),
        "refiner:search=never": Refiner(secret=secret, search="never"),
    }
    for count in options.iterations:
        defenses[f"refiner:iterations={count}"] = Refiner(secret=secret, iterations=count)
    for name, defense in defenses.items():
        row = measure(name, defense, dtype)
        print(row, flush=True)
        append_rows(options.out / "cpu.jsonl", [row])


if __name__ == "__main__":
    main()
