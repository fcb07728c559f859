"""Figures of the paper under each reading of its equations: CIFAR-10, LeNet at initialisation.

    python benchmarks/paper_figures.py --data FOLDER [--images 1000] [--part readings convergence batch say]
        [--only letter "descent 10"]

The paper reports MSE(x*, x) 0.0839 and D(x*) − D(x) 0.6258 (appendix), convergence within 10 iterations and
no change after 20 (gradient-trend figure), and an image that still shows the original at α = 0. `readings`
compares readings of the equations, `convergence` numbers of iterations, `batch` step sizes on a batch of
128, and `say` the influence of each setting of `Refiner()`. Feeds docs/results/paper.jsonl, which
docs/interpretations.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixels import pixels
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import NoDefense, Refiner
from refiner.evaluation import EvaluationNetwork
from refiner.models import make_model

PAPER = Refiner.paper(epsilon=None)
READINGS = {
    "letter: raw weights, descent 1": PAPER,
    "clamped to 0..1": replace(PAPER, clamp=True),
    # UM with the weight itself instead of its square: the root of |g·θ|, and of τ.
    "weight not squared (sentence)": replace(PAPER, element_power=0.5, tau=PAPER.tau**0.5),
    "relative UM": replace(PAPER, relative=True),
    "relative UM, step 0.1": replace(PAPER, relative=True, step=0.1),
    "descent 3": replace(PAPER, step=3.0),
    "descent 10": replace(PAPER, step=10.0),
    "L-BFGS, relative": replace(PAPER, solver="lbfgs", relative=True),
    "letter, α 0": replace(PAPER, alpha=0.0),
    "letter, α 0, descent 10": replace(PAPER, alpha=0.0, step=10.0),
    "letter, α 0, descent 10, ι 30": replace(PAPER, alpha=0.0, step=10.0, iterations=30),
    "letter, α 0.7": replace(PAPER, alpha=0.7),
    "default": Refiner(),
}


def measure(task: Task, defense: Refiner, x: Tensor, y: Tensor) -> dict[str, float]:
    """Robust data and uploads of this defence, as means over the victims."""
    network = EvaluationNetwork.bundled(x.device)
    real = NoDefense().protect(task, x, y).flat()
    result = defense.protection(task, x, y, seed=0)
    assert result.robust is not None
    robust, update = result.robust, result.update
    distance = (update.flat() - real).norm(dim=1)
    noise = network.score(robust.flatten(0, 1)).mean() - network.score(x.flatten(0, 1)).mean()
    return {
        "MSE": round(float((robust - x).square().mean()), 4),
        "D(x*) − D(x)": round(float(noise), 4),
        "distance": round(float(distance.mean()), 4),
        "relative": round(float((distance / real.norm(dim=1)).mean()), 4),
        "least": round(float(robust.min()), 2),
        "greatest": round(float(robust.max()), 2),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--part", nargs="+", default=["readings", "convergence", "batch", "say"])
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="only rows whose name starts with one of these"
    )
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels
    victims = slice(40_000, 40_000 + options.images)
    single = pixels(images[victims], device)[:, None], labels[victims, None].to(device)
    batch = single[0][:128].transpose(0, 1), single[1][:128].transpose(0, 1)
    torch.manual_seed(0)
    task = Task(make_model("lenet").to(device), example=single[0][0])

    def record_row(part: str, name: str, defense: Refiner, data: tuple[Tensor, Tensor]) -> None:
        if options.only and not name.startswith(tuple(options.only)):
            return
        size = data[0].shape[1]
        print(
            json.dumps(
                {"part": part, "B": size, "name": name} | measure(task, replace(defense, chunk=250), *data)
            ),
            flush=True,
        )

    if "readings" in options.part:
        for name, defense in READINGS.items():
            record_row("readings", name, defense, single)
    if "convergence" in options.part:
        first_200 = single[0][:200], single[1][:200]
        for name, defense in (("letter", PAPER), ("default", Refiner(search="always", error_feedback=False))):
            for iterations in (0, 1, 2, 3, 5, 7, 10, 15, 20, 30):
                record_row(
                    "convergence",
                    f"{name}, ι {iterations}",
                    replace(defense, iterations=iterations),
                    first_200,
                )
    if "batch" in options.part:
        # PM is the mean of D over the batch, so a fixed step changes each sample B times less.
        steps: dict[str, dict[str, Any]] = {
            "letter, ι 0": {"iterations": 0},
            "letter": {},
            "letter, step B": {"step": float(batch[0].shape[1])},
        }
        for name, change in steps.items():
            record_row("batch", name, replace(PAPER, **change), batch)
    if "say" in options.part:
        changes: dict[str, dict[str, Any]] = {
            "default": {},
            "UM without τ (1)": {"tau": 1.0},
            "τ 0.5": {"tau": 0.5},
            "with element weight": {"element_power": 1.0},
            "with ½ element weight": {"element_power": 0.5},
            "no radius": {"radius": None},
            "UM off (no steps)": {"iterations": 0},
        }
        for name, change in changes.items():
            record_row("say", name, replace(Refiner(), **change), batch)


if __name__ == "__main__":
    main()
