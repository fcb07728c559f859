"""The search for a solver: for each variant, what it shows at B = 1 and what it costs in training.

    python benchmarks/solver_search.py --data FOLDER --out FOLDER [--stages look attack train] [--variants …]

Victims are CIFAR-10 training images 40,000 …; the attacker's total-variation weight is chosen on 41,000 ….
With `--after` the model has had so many undefended rounds of one client × 128 before it is looked at and
attacked.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from federated import pixels, train
from inverting import blind_guesses, invert, psnr
from refiner.core import Task, gradients
from refiner.data import load_dataset
from refiner.defenses import Defense, NoDefense, Refiner
from refiner.evaluation import EvaluationNetwork
from refiner.models import build

TV = [1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]
LETTER = Refiner.paper(epsilon=None)
# The letter's start and noise with other searches: β has a say there.
BLEND = replace(LETTER, solver="secant", relative=True, element_power=0.0)
STRAIGHT = Refiner(upload="straight", floor=0.43, remember=50_000)
VARIANTS: dict[str, Defense] = {
    "none": NoDefense(),
    "paper, no ε": LETTER,
    "paper": Refiner.paper(),
    "paper, relative weights": replace(LETTER, relative=True),
    "paper, no element weight": replace(LETTER, element_power=0.0),
    "paper, step 10": replace(LETTER, step=10.0),
    "paper, signed 0.02": replace(LETTER, relative=True, solver="signed", step=0.02),
    "paper, Adam 0.05": replace(LETTER, relative=True, solver="adam", step=0.05),
    "paper, secant": BLEND,
    "paper, secant, β 0": replace(BLEND, beta=0.0),
    "paper, secant, β 0.1": replace(BLEND, beta=0.1),
    "paper, secant, β 10": replace(BLEND, beta=10.0),
    "default": Refiner(),
    "default, warm": Refiner(warm_start=True, remember=50_000),
    "default, ε 0.1": Refiner(epsilon=0.1),
    "default, sample": Refiner(granularity="sample"),
    "default, τ 1": Refiner(tau=1.0),
    "default, β 0": Refiner(beta=0.0),
    "default, no floor": Refiner(floor=0.0),
    "default, element weight": Refiner(element_power=1.0),
    "default, ½ element weight": Refiner(element_power=0.5),
    "default, descent 1": Refiner(solver="descent"),
    "default, Adam 0.05": Refiner(solver="adam", step=0.05),
    "default, conjugate": Refiner(solver="conjugate"),
    "default, α 1.8": Refiner(alpha=1.8),
    "default, floor 0.3": Refiner(floor=0.3),
    "default, floor 0.45": Refiner(floor=0.45),
    "centred 3, floor 0.5": Refiner(alpha=3.0, floor=0.5),
    "no steps": Refiner(iterations=0),
    "no steps, fresh": Refiner(iterations=0),
    "straight": STRAIGHT,
    "straight, floor 0.36": replace(STRAIGHT, floor=0.36),
    "straight, floor 0.4": replace(STRAIGHT, floor=0.4),
    "straight, no steps": replace(STRAIGHT, iterations=0),
    "straight, no steps, fresh": replace(STRAIGHT, iterations=0),
    "straight, no steps, ε 0.1": replace(STRAIGHT, iterations=0, epsilon=0.1),
    "straight 2.6, no steps, fresh": replace(STRAIGHT, alpha=2.6, iterations=0),
    "straight 3.2, no steps": replace(STRAIGHT, alpha=3.2, iterations=0),
    "blend 0.9, floor 0.2": Refiner(start="blend", alpha=0.9, floor=0.2),
    "blend 1, floor 0.2": Refiner(start="blend", alpha=1.0, floor=0.2),
    "blend 0.5, random sign": Refiner(
        start="blend", alpha=0.5, floor=0.0, iterations=0, random_sign=True, granularity="sample"
    ),
}


def advance(task: Task, x: Tensor, y: Tensor, rounds: int, rate: float, seed: int) -> None:
    """Train the model of `task` for so many undefended rounds of 128 images."""
    draws = torch.Generator(x.device).manual_seed(seed)
    for _ in range(rounds):
        rows = torch.randint(len(x), (128,), generator=draws, device=x.device)
        step = gradients(task, x[rows][None], y[rows][None])
        with torch.no_grad():
            for name, slope in step.items():
                task.model.get_parameter(name).sub_(rate * slope[0])


def distances(task: Task, defense: Defense, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The real gradients, what is uploaded instead, and how far apart they are."""
    real, upload = (d.protect(task, x, y, seed=0).flat() for d in (NoDefense(), defense))
    return real, upload, (upload - real).norm(dim=1)


def look(task: Task, defense: Defense, x: Tensor, y: Tensor) -> dict[str, float]:
    """Robust data and uploads of single images at this model state: distances and noise ratios."""
    real, upload, distance = distances(task, defense, x, y)
    relative = distance / real.norm(dim=1)
    row = {
        "distance": float(distance.mean()),
        "relative distance": float(relative.mean()),
        "least relative distance": float(relative.min()),
        "cosine": float(torch.cosine_similarity(upload, real).mean()),
    }
    if not getattr(defense, "random_sign", False):
        whole, _, apart = distances(task, defense, x[None, :128, 0], y[None, :128, 0])
        row["relative distance of a batch"] = float(apart[0] / whole.norm())
    if isinstance(defense, Refiner):
        robust, _ = defense.refine(task, x, y, seed=0)
        network = EvaluationNetwork.bundled(x.device)
        row["MSE(x*, x)"] = float((robust - x).square().mean())
        row["D(x*)"] = float(network.score(robust.flatten(0, 1)).mean())
        row["D(x*) − D(x)"] = row["D(x*)"] - float(network.score(x.flatten(0, 1)).mean())
    return row


def uploads(task: Task, defense: Defense, x: Tensor, y: Tensor, count: int, kept: bool) -> Tensor:
    """The mean of `count` uploads of every victim at one model state, with one key or a new one for each."""
    flats = [defense.protect(task, x, y, seed=None if kept else number).flat() for number in range(count)]
    return torch.stack(flats).mean(0)


def attack(
    task: Task,
    observed: dict[str, Tensor],
    labels: Tensor,
    truth: Tensor,
    *,
    tune: int,
    weights: list[float],
    steps: int,
) -> dict[str, dict[str, Any]]:
    """PSNR of every variant on all but the first `tune` victims, on which its TV weight is chosen."""
    names, count = list(observed), len(weights)
    grid = torch.tensor(weights, device=truth.device)
    tuning = torch.cat([observed[n][:tune].repeat_interleave(count, 0) for n in names])
    y = labels[:tune].repeat_interleave(count, 0).repeat(len(names), 1)
    rebuilt = invert(task, tuning, y, grid.repeat(len(tuning) // count), steps=steps)
    target = truth[:tune].repeat_interleave(count, 0).repeat(len(names), 1, 1, 1, 1)
    scores = psnr(rebuilt, target).view(len(names), tune, count).mean(1)
    best = grid[scores.argmax(1)]
    rest = torch.cat([observed[n][tune:] for n in names])
    victims = len(truth) - tune
    rebuilt = invert(
        task, rest, labels[tune:].repeat(len(names), 1), best.repeat_interleave(victims), steps=steps
    )
    values = psnr(rebuilt, truth[tune:].repeat(len(names), 1, 1, 1, 1)).view(len(names), victims)
    return {
        n: {
            "each": values[i],
            "PSNR": float(values[i].mean()),
            "PSNR ±95 %": float(1.96 * values[i].std() / victims**0.5),
            "TV": float(best[i]),
            "victims": victims,
            "tuning PSNR": [round(float(s), 2) for s in scores[i]],
        }
        for i, n in enumerate(names)
    }


def by_sign(each: Tensor, turned: Tensor) -> dict[str, float]:
    """PSNR of victims whose error has kept its sign, and of those whose error was turned."""
    return {"PSNR, kept": float(each[~turned].mean()), "PSNR, turned": float(each[turned].mean())}


def attacked(
    options: argparse.Namespace, task: Task, chosen: dict[str, Defense], images: Tensor, labels: Tensor
) -> Iterator[dict[str, object]]:
    """A row for each variant, and before them the blind guesses."""
    device = str(next(task.model.parameters()).device)
    pick = [*range(41_000, 41_000 + options.tune), *range(40_000, 40_000 + options.victims)]
    x, y = pixels(images[pick], device)[:, None], labels[pick, None].to(device)
    yield {"stage": "blind", **blind_guesses(x[options.tune :], pixels(images[:10_000], device)[:, None])}
    observed = {name: d.protect(task, x, y, seed=1).flat() for name, d in chosen.items()}
    for count in options.repeats:
        for name, d in chosen.items():
            observed[f"{name}, {count} uploads, new keys"] = uploads(task, d, x, y, count, kept=False)
            observed[f"{name}, {count} uploads, one key"] = uploads(task, d, x, y, count, kept=True)
    told = {"tune": options.tune, "weights": options.weights, "steps": options.steps}
    for name, row in attack(task, observed, y, x, **told).items():
        each, defense, signs = row.pop("each"), chosen.get(name), {}
        if isinstance(defense, Refiner) and defense.random_sign:
            real = NoDefense().protect(task, x, y).flat()
            same = replace(defense, random_sign=False).protect(task, x, y, seed=1).flat()
            turned = ((observed[name] - real) * (same - real)).sum(1) < 0
            signs = by_sign(each, turned[options.tune :])
        yield {"stage": "attack", "variant": name, "after": options.after, **row, **signs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", nargs="+", default=["look", "attack", "train"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--victims", type=int, default=200)
    parser.add_argument("--tune", type=int, default=24)
    parser.add_argument("--weights", type=float, nargs="+", default=TV, help="of total variation")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--repeats", type=int, nargs="*", default=[])
    parser.add_argument("--after", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    log = (options.out / "search.jsonl").open("a")

    def note(**row: object) -> None:
        print(json.dumps(row, ensure_ascii=False), flush=True)
        print(json.dumps(row, ensure_ascii=False), file=log, flush=True)

    images, labels = load_dataset("cifar10", "train", options.data)
    chosen = {name: VARIANTS[name] for name in options.variants}
    torch.manual_seed(options.seed)
    task = Task(build("lenet").to(device), example=pixels(images[:2], device))
    if options.after:
        advance(task, pixels(images, device), labels.to(device), options.after, options.rate, options.seed)
    began = time.perf_counter()
    if "look" in options.stages:
        x, y = pixels(images[40_000:41_000], device)[:, None], labels[40_000:41_000, None].to(device)
        for name, defense in chosen.items():
            note(stage="look", variant=name, after=options.after, **look(task, defense, x, y))
    if "attack" in options.stages:
        for row in attacked(options, task, chosen, images, labels):
            note(**row)
        note(stage="time", seconds=round(time.perf_counter() - began))
    if "train" in options.stages:
        tested = load_dataset("cifar10", "test", options.data)
        data = (pixels(images, device), labels.to(device), pixels(tested[0], device), tested[1].to(device))
        told = {"clients": options.clients, "rounds": options.rounds, "rate": options.rate}
        for name, defense in chosen.items():
            began = time.perf_counter()
            curve = train(
                defense, data, seed=options.seed, label=name, kept=not name.endswith("fresh"), **told
            )
            spent = round(time.perf_counter() - began)
            note(stage="train", variant=name, curve=curve, seconds=spent, **told)


if __name__ == "__main__":
    main()
