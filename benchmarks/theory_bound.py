"""How often the paper's bound on reconstructions holds: dist(x̂, x) ≥ dist(x*, x) − σ.

    python benchmarks/theory_bound.py --data FOLDER --out FOLDER [--victims 64] [--attacks idlg …]

σ is what an attack misses without a defence: the mean distance between images and their reconstructions
from undefended gradients. x* are robust data, x̂ reconstructions from their uploads. Distances are the mean
squared error, and the difference of noise ratios that the evaluation network D gives. Victims are CIFAR-10
training images from 40,000 on, LeNet is untrained, uploads are of single images. One row for each attack,
defence and distance in theory.jsonl, which docs/results/theory.md shows.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pixels import client_batches
from refiner.attacks import make_attack
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import make_defense
from refiner.evaluation import EvaluationNetwork
from refiner.models import LeNet
from rows import append_rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--victims", type=int, default=64)
    parser.add_argument("--attacks", nargs="+", default=["idlg", "gradinversion", "inverting"])
    parser.add_argument("--defenses", nargs="+", default=["refiner-paper", "refiner"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    x, y = client_batches(cifar10, options.victims, 1, device)
    torch.manual_seed(options.seed)
    task = Task(LeNet().to(device), example=x[0])
    network = EvaluationNetwork.bundled(x.device)

    def noise_difference(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            ratios: Tensor = network(a[:, 0].clamp(0, 1)) - network(b[:, 0])
            return ratios.abs().flatten()

    distances: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "MSE": lambda a, b: (a - b).square().flatten(1).mean(1),
        "D": noise_difference,
    }
    for text in options.attacks:
        attack = make_attack(text)
        found, robust = {}, {}
        for defense in ("none", *options.defenses):
            robust[defense], seen = uploads(
                task, make_defense(defense), x, y, labels=False, seed=options.seed
            )
            found[defense] = attack.reconstruct(seen, seed=options.seed).x
        for name, distance in distances.items():
            sigma = float(distance(found["none"], x).mean())
            for defense in options.defenses:
                data = robust[defense]
                assert data is not None
                reached, hidden = distance(found[defense], x), distance(data, x)
                row = {
                    "attack": text,
                    "defense": defense,
                    "distance": name,
                    "victims": options.victims,
                    "sigma": sigma,
                    "robust data": float(hidden.mean()),
                    "reconstruction": float(reached.mean()),
                    "holds": float((reached >= hidden - sigma).double().mean()),
                    "seed": options.seed,
                }
                print(json.dumps(row, ensure_ascii=False), flush=True)
                append_rows(options.out / "theory.jsonl", [row])


if __name__ == "__main__":
    main()
