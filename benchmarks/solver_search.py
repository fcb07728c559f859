"""Comparison of solvers for Refiner: for each variant, its leakage at B = 1 and its accuracy in training.

    python benchmarks/solver_search.py --data FOLDER --out FOLDER [--stages look attack train] [--variants …]

Stage `look` reports gradient distances and noise ratios, `attack` the PSNR of InvertingGrad, `train` the
accuracy. Victims are CIFAR-10 training images from 40,000 on; the attacker's total-variation weight is
chosen on images from 41,000 on. With `--after` the model is first trained for this many undefended rounds
of one client × 128. Feeds docs/results/solver.jsonl, which docs/results/solver.md shows.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixels import pixels
from refiner.attacks import Attack, InvertingGradients, Observation, Sweep, ThreatModel
from refiner.core import Task, gradients
from refiner.data import ImageDataset, iid, load_data
from refiner.defenses import Defense, NoDefense, Refiner
from refiner.evaluation import EvaluationNetwork
from refiner.federation import FederatedSettings, Schedule
from refiner.federation.local import LocalClients
from refiner.federation.training import Clients, run_rounds
from refiner.metrics import blind_guess, psnr
from refiner.models import make_model
from rows import append_rows

TV = [1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0]
LETTER = Refiner.paper(epsilon=None)
SEARCHED = Refiner(search="always", error_feedback=False)
VARIANTS: dict[str, Defense] = {
    "none": NoDefense(),
    "paper, no ε": LETTER,
    "paper": Refiner.paper(),
    "paper, relative weights": replace(LETTER, relative=True),
    "paper, no element weight": replace(LETTER, element_power=0.0),
    "paper, step 10": replace(LETTER, step=10.0),
    "paper, L-BFGS": replace(LETTER, solver="lbfgs", relative=True, element_power=0.0),
    "white": Refiner(start="centred", alpha=2.2),
    "white, searched": replace(SEARCHED, start="centred", alpha=2.2),
    "default": Refiner(),
    "default, never": Refiner(search="never"),
    "default, no feedback": Refiner(error_feedback=False),
    "default, searched": SEARCHED,
    "default, searched, no radius": replace(SEARCHED, radius=None),
    "default, α 2": Refiner(alpha=2.0),
    "default, α 2.5": Refiner(alpha=2.5),
    "default, fresh": Refiner(),
}


def advance(task: Task, x: Tensor, y: Tensor, rounds: int, rate: float, seed: int) -> None:
    """Train the model of `task` for this many undefended rounds of 128 images."""
    generator = torch.Generator(x.device).manual_seed(seed)
    for _ in range(rounds):
        rows = torch.randint(len(x), (128,), generator=generator, device=x.device)
        step = gradients(task, x[rows][None], y[rows][None])
        with torch.no_grad():
            for name, grad in step.items():
                task.model.get_parameter(name).sub_(rate * grad[0])


def distances(task: Task, defense: Defense, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The real gradients, the uploads, and the distances between them."""
    real, upload = (d.protect(task, x, y, seed=0).flat() for d in (NoDefense(), defense))
    return real, upload, (upload - real).norm(dim=1)


def measure(task: Task, defense: Defense, x: Tensor, y: Tensor) -> dict[str, float]:
    """Robust data and uploads of single images at this model state: distances and noise ratios."""
    real, upload, distance = distances(task, defense, x, y)
    relative = distance / real.norm(dim=1)
    row = {
        "distance": float(distance.mean()),
        "relative distance": float(relative.mean()),
        "least relative distance": float(relative.min()),
        "cosine": float(torch.cosine_similarity(upload, real).mean()),
    }
    batch_gradient, _, batch_distance = distances(task, defense, x[None, :128, 0], y[None, :128, 0])
    row["relative distance of a batch"] = float(batch_distance[0] / batch_gradient.norm())
    robust = defense.protection(task, x, y, seed=0).robust
    if robust is not None:
        network = EvaluationNetwork.bundled(x.device)
        row["MSE(x*, x)"] = float((robust - x).square().mean())
        row["D(x*)"] = float(network.score(robust.flatten(0, 1)).mean())
        row["D(x*) − D(x)"] = row["D(x*)"] - float(network.score(x.flatten(0, 1)).mean())
    return row


def mean_upload(task: Task, defense: Defense, x: Tensor, y: Tensor, count: int, same_key: bool) -> Tensor:
    """The mean of `count` uploads of every victim at one model state, with one key or a new one for each."""
    state = defense.init_state()
    gradients_sent = [
        defense.protect(task, x, y, seed=None if same_key else number, state=state).flat()
        for number in range(count)
    ]
    return torch.stack(gradients_sent).mean(0)


def reconstruct(task: Task, uploads: Tensor, labels: Tensor, attack: Attack) -> Tensor:
    """Images `[V, C, H, W]` that `attack` reconstructs from uploads `[V, N]` of single images."""
    observation = Observation(task, task.parameters(), uploads, 1, labels)
    return attack.reconstruct(observation, threat=ThreatModel(labels=True)).x[:, 0]


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
    """PSNR of every variant; its TV weight is chosen on the first `tune` victims, which are not scored."""
    names, victims = list(observed), len(truth) - tune
    tuning = torch.cat([observed[n][:tune] for n in names])
    sweep = Sweep(InvertingGradients(iterations=steps), [{"total_variation": weight} for weight in weights])
    reconstruction = reconstruct(task, tuning, labels[:tune].repeat(len(names), 1), sweep)
    target = truth[:tune, 0].repeat(len(weights) * len(names), 1, 1, 1)
    scores = psnr(reconstruction, target).view(len(weights), len(names), tune).mean(2).T
    best = [weights[i] for i in scores.argmax(1).tolist()]
    reconstructions = [
        reconstruct(
            task, observed[n][tune:], labels[tune:], InvertingGradients(iterations=steps, total_variation=w)
        )
        for n, w in zip(names, best, strict=True)
    ]
    values = torch.stack([psnr(images, truth[tune:, 0]) for images in reconstructions])
    return {
        n: {
            "PSNR": float(values[i].mean()),
            "PSNR ±95 %": float(1.96 * values[i].std() / victims**0.5),
            "TV": best[i],
            "victims": victims,
            "tuning PSNR": [round(float(s), 2) for s in scores[i]],
        }
        for i, n in enumerate(names)
    }


def attack_rows(
    options: argparse.Namespace, task: Task, variants: dict[str, Defense], images: Tensor, labels: Tensor
) -> Iterator[dict[str, object]]:
    """Yield a row with the blind guesses, then one for each variant."""
    device = str(next(task.model.parameters()).device)
    indices = [*range(41_000, 41_000 + options.tune), *range(40_000, 40_000 + options.victims)]
    x, y = pixels(images[indices], device)[:, None], labels[indices, None].to(device)
    blind = blind_guess(x[options.tune :, 0], pixels(images[:10_000], device)).scores
    means = {name.replace("own colour", "own mean colour"): float(s.mean()) for name, s in blind.items()}
    yield {"stage": "blind", **means}
    observed = {name: d.protect(task, x, y, seed=1).flat() for name, d in variants.items()}
    for count in options.repeats:
        for name, d in variants.items():
            observed[f"{name}, {count} uploads, new keys"] = mean_upload(task, d, x, y, count, same_key=False)
            observed[f"{name}, {count} uploads, one key"] = mean_upload(task, d, x, y, count, same_key=True)
    settings = {"tune": options.tune, "weights": options.weights, "steps": options.steps}
    for name, row in attack(task, observed, y, x, **settings).items():
        yield {"stage": "attack", "variant": name, "after": options.after, **row}


class FreshKeys:
    """Clients whose defence has a new key in every round, so that the noise of an image changes."""

    def __init__(self, clients: LocalClients) -> None:
        self.clients = clients

    def mean_update(self, round: int) -> Tensor:
        self.clients.defense = self.clients.defense.with_seeded_key(round)
        return self.clients.mean_update(round)

    def state(self) -> dict[str, Tensor]:
        return self.clients.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.clients.restore(state)


def training_curve(
    name: str, defense: Defense, data: ImageDataset, test: ImageDataset, device: str, **settings: Any
) -> list[tuple[int, float]]:
    """Test accuracy in percent over a FedSGD training of LeNet; variants named "fresh" renew their keys."""
    federated = FederatedSettings(**settings)
    torch.manual_seed(federated.seed or 0)
    task = Task(make_model("lenet").to(device), example=torch.zeros(1, 3, 32, 32, device=device))
    schedule = Schedule(iid(data.labels, federated.clients, federated.seed or 0), federated)
    local = LocalClients.seeded(task, data.images, data.labels, schedule, defense)
    clients: Clients = FreshKeys(local) if name.endswith("fresh") else local

    def show(rounds: int, accuracy: float | None) -> None:
        if accuracy is not None:
            print(f"{name} round {rounds}: {100 * accuracy:.2f} %", flush=True)

    evaluations = run_rounds(clients, task, test, federated.rounds, evaluate_every=1000, on_round=show)
    return [(each.round, 100 * each.accuracy) for each in evaluations]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", nargs="+", default=["look", "attack", "train"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--victims", type=int, default=200)
    parser.add_argument("--tune", type=int, default=24)
    parser.add_argument(
        "--weights", type=float, nargs="+", default=TV, help="weights of total variation to choose from"
    )
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--repeats", type=int, nargs="*", default=[])
    parser.add_argument("--after", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)

    def record_row(**row: object) -> None:
        print(json.dumps(row, ensure_ascii=False), flush=True)
        append_rows(options.out / "solver.jsonl", [row], seed=options.seed)

    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels
    variants = {name: VARIANTS[name] for name in options.variants}
    torch.manual_seed(options.seed)
    task = Task(make_model("lenet").to(device), example=pixels(images[:2], device))
    if options.after:
        advance(task, pixels(images, device), labels.to(device), options.after, options.rate, options.seed)
    start = time.perf_counter()
    if "look" in options.stages:
        x, y = pixels(images[40_000:41_000], device)[:, None], labels[40_000:41_000, None].to(device)
        for name, defense in variants.items():
            record_row(stage="look", variant=name, after=options.after, **measure(task, defense, x, y))
    if "attack" in options.stages:
        for row in attack_rows(options, task, variants, images, labels):
            record_row(**row)
        record_row(stage="time", seconds=round(time.perf_counter() - start))
    if "train" in options.stages:
        cifar10_test = load_data("cifar10", "test", root=options.data)
        settings = {"clients": options.clients, "rounds": options.rounds, "lr": options.rate}
        for name, defense in variants.items():
            start = time.perf_counter()
            curve = training_curve(
                name, defense, cifar10, cifar10_test, device, seed=options.seed, **settings
            )
            duration = round(time.perf_counter() - start)
            reported = {"clients": options.clients, "rounds": options.rounds, "rate": options.rate}
            record_row(stage="train", variant=name, curve=curve, seconds=duration, **reported)


if __name__ == "__main__":
    main()
