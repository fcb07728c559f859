"""Soteria against attackers who get round it: InvertingGrad as it is, muted, and told by the upload.

    python benchmarks/muting.py --data FOLDER

The muted attack leaves the last linear layer's gradient out. The one that is told reads, from the columns of
that gradient that are zero, which features were pruned, prunes them in its own model, and is muted as well.
LeNet with GELU at initialisation, single CIFAR-10 training images from 40,000 on, labels known. With
`--tune` the weight of total variation is chosen for each row on so many images from 41,000 on. One JSON
object a row; PSNR in dB, beside that of a guess that is each image's own mean colour; top-1: how many
reconstructions correlate with their own original more than with any other of 1,000 images.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from federated import pixels
from inverting import psnr
from refiner.attacks import InvertingGradients, Observation, Sweep, ThreatModel
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import Defense, NoDefense, Soteria
from refiner.metrics import identify, ssim
from refiner.models import build

LAYER = "head"
KNOWN = ThreatModel(labels=True)
WEIGHTS = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)


def plain(attack: InvertingGradients, seen: Observation, upload: Tensor) -> Tensor:
    """The attack as it is."""
    return attack.reconstruct(seen, threat=KNOWN).x


def muted(attack: InvertingGradients, seen: Observation, upload: Tensor) -> Tensor:
    """Without the last linear layer."""
    return replace(attack, without=LAYER).reconstruct(seen, threat=KNOWN).x


def told(attack: InvertingGradients, seen: Observation, upload: Tensor) -> Tensor:
    """Muted, in a model without the pruned features: victim by victim, since each has a model of its own."""
    found = []
    weight = f"{LAYER}.weight"
    for victim, columns in enumerate(upload):
        pruned = seen.parameters[weight] * (columns != 0).any(0)
        one = slice(victim, victim + 1)
        alone = replace(
            seen,
            parameters={**seen.parameters, weight: pruned},
            gradient=seen.gradient[one],
            labels=seen.labels[one],
        )
        found.append(muted(attack, alone, columns))
    return torch.cat(found)


ATTACKS: dict[str, Callable[[InvertingGradients, Observation, Tensor], Tensor]] = {
    "plain": plain,
    "muted": muted,
    "told": told,
}


def tuned(attack: InvertingGradients, task: Task, defense: Defense, x: Tensor, y: Tensor) -> float:
    """The weight of total variation with the best PSNR on these images."""
    seen = Observation.of(task, defense.protect(task, x, y), labels=y)
    sweep = Sweep(attack, [{"total_variation": weight} for weight in WEIGHTS])
    found = sweep.reconstruct(seen, threat=KNOWN).x.split(len(x))
    return max(zip(found, WEIGHTS, strict=True), key=lambda one: float(psnr(one[0], x).mean()))[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--tv", type=float, default=1e-4)
    parser.add_argument("--tune", type=int, default=0, help="choose the weight on so many other images")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=["plain", "muted", "told"])
    parser.add_argument("--variants", nargs="+", default=["original", "improved"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.5, 0.9])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    images, labels = load_dataset("cifar10", "train", options.data)

    def take(first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count)
        return pixels(images[rows], device)[:, None], labels[rows, None].to(device)

    x, y = take(40_000, options.images)
    others, _ = take(42_000, 1000 - options.images)
    torch.manual_seed(0)
    task = Task(build("lenet").to(device), example=x[0].repeat(2, 1, 1, 1))
    attack = InvertingGradients(iterations=options.iterations, total_variation=options.tv)
    blind = psnr(x.mean((-2, -1), keepdim=True).expand_as(x), x)
    print(json.dumps({"guess": "own mean colour", "psnr": round(float(blind.mean()), 2)}), flush=True)
    defenses: list[Defense] = [NoDefense()]
    defenses += [Soteria(rate=r, variant=v) for v in options.variants for r in options.rates]
    for defense in defenses:
        update = defense.protect(task, x, y)
        seen = Observation.of(task, update, labels=y)
        for name in options.attacks:
            # Nothing is pruned in the one, and only the muted layer in the other.
            if name == "told" and getattr(defense, "variant", "original") == "original":
                continue
            began = time.perf_counter()
            chosen = attack
            if options.tune and name != "told":
                tried = attack if name == "plain" else replace(attack, without=LAYER)
                weight = tuned(tried, task, defense, *take(41_000, options.tune))
                chosen = replace(attack, total_variation=weight)
            made = ATTACKS[name](chosen, seen, update.tensors[f"{LAYER}.weight"])
            found = psnr(made, x)
            row = {"defense": defense.name, "attack": name, "psnr": round(float(found.mean()), 2)}
            row |= {key: getattr(defense, key) for key in ("variant", "rate") if hasattr(defense, key)}
            row |= {"ssim": round(float(ssim(made[:, 0], x[:, 0]).mean()), 3)}
            row |= {"top-1": round(identify(made[:, 0], x[:, 0], others=others[:, 0]).top1, 3)}
            row |= {"better than the guess": int((found > blind).sum()), "of": len(x)}
            row |= {"total_variation": chosen.total_variation, "iterations": options.iterations}
            print(json.dumps({**row, "s": round(time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    main()
