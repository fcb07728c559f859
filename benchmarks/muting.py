"""Soteria against attackers who adapt to it: InvertingGrad as it is, muted, and with the pruning inferred.

    python benchmarks/muting.py --data FOLDER

The muted attack ignores the gradient of the last linear layer. The attack called `informed` reads the pruned
features from the zero columns of that gradient, prunes them in its own model, and is muted as well. LeNet
with GELU at initialisation, single CIFAR-10 training images from 40,000 on, labels known; with `--tune` the
weight of total variation is chosen for each row on this many images from 41,000 on. PSNR is in dB, next to
that of a blind guess, each image's own mean colour; top-1 is the share of reconstructions that correlate
with their own original more than with any other of 1,000 images. Feeds docs/results/muting.jsonl, which
docs/results/defenses.md shows.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pixels import pixels
from refiner.attacks import InvertingGradients, Observation, Sweep, ThreatModel
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import Defense, NoDefense, Soteria
from refiner.metrics import identify, psnr, ssim
from refiner.models import make_model

LAYER = "head"
LABELS_KNOWN = ThreatModel(labels=True)
WEIGHTS = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)


def plain(attack: InvertingGradients, observation: Observation, upload: Tensor) -> Tensor:
    """The attack as it is."""
    return attack.reconstruct(observation, threat=LABELS_KNOWN).x


def muted(attack: InvertingGradients, observation: Observation, upload: Tensor) -> Tensor:
    """The attack without the gradient of the last linear layer."""
    return replace(attack, without=LAYER).reconstruct(observation, threat=LABELS_KNOWN).x


def with_inferred_pruning(attack: InvertingGradients, observation: Observation, upload: Tensor) -> Tensor:
    """The muted attack on a model without the pruned features, which differ from victim to victim."""
    reconstructions = []
    weight = f"{LAYER}.weight"
    for victim, columns in enumerate(upload):
        pruned = observation.parameters[weight] * (columns != 0).any(0)
        row = slice(victim, victim + 1)
        single = replace(
            observation,
            parameters={**observation.parameters, weight: pruned},
            gradient=observation.gradient[row],
            labels=observation.labels[row],
        )
        reconstructions.append(muted(attack, single, columns))
    return torch.cat(reconstructions)


ATTACKS: dict[str, Callable[[InvertingGradients, Observation, Tensor], Tensor]] = {
    "plain": plain,
    "muted": muted,
    "informed": with_inferred_pruning,
}


def tune_total_variation(
    attack: InvertingGradients, task: Task, defense: Defense, x: Tensor, y: Tensor
) -> float:
    """The weight of total variation that scores the highest PSNR on these images."""
    observation = Observation.of(task, defense.protect(task, x, y), labels=y)
    sweep = Sweep(attack, [{"total_variation": weight} for weight in WEIGHTS])
    reconstructions = sweep.reconstruct(observation, threat=LABELS_KNOWN).x.split(len(x))
    return max(
        zip(reconstructions, WEIGHTS, strict=True),
        key=lambda pair: float(psnr(pair[0][:, 0], x[:, 0]).mean()),
    )[1]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--tv", type=float, default=1e-4)
    parser.add_argument(
        "--tune", type=int, default=0, help="number of other images on which the TV weight is chosen"
    )
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=["plain", "muted", "informed"])
    parser.add_argument("--variants", nargs="+", default=["original", "improved"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.5, 0.9])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels

    def take(first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count)
        return pixels(images[rows], device)[:, None], labels[rows, None].to(device)

    x, y = take(40_000, options.images)
    distractors, _ = take(42_000, 1000 - options.images)
    torch.manual_seed(0)
    task = Task(make_model("lenet").to(device), example=x[0].repeat(2, 1, 1, 1))
    attack = InvertingGradients(iterations=options.iterations, total_variation=options.tv)
    guess_psnr = psnr(x[:, 0].mean((-2, -1), keepdim=True).expand_as(x[:, 0]), x[:, 0])
    print(json.dumps({"guess": "own mean colour", "psnr": round(float(guess_psnr.mean()), 2)}), flush=True)
    defenses: list[Defense] = [NoDefense()]
    defenses += [Soteria(rate=r, variant=v) for v in options.variants for r in options.rates]
    for defense in defenses:
        update = defense.protect(task, x, y)
        observation = Observation.of(task, update, labels=y)
        for name in options.attacks:
            # Without a defence nothing is pruned; the original variant prunes the muted layer only.
            if name == "informed" and getattr(defense, "variant", "original") == "original":
                continue
            start = time.perf_counter()
            tuned_attack = attack
            if options.tune and name != "informed":
                candidate = attack if name == "plain" else replace(attack, without=LAYER)
                weight = tune_total_variation(candidate, task, defense, *take(41_000, options.tune))
                tuned_attack = replace(attack, total_variation=weight)
            reconstruction = ATTACKS[name](tuned_attack, observation, update.tensors[f"{LAYER}.weight"])
            victim_psnr = psnr(reconstruction[:, 0], x[:, 0])
            row = {"defense": defense.name, "attack": name, "psnr": round(float(victim_psnr.mean()), 2)}
            row |= {key: getattr(defense, key) for key in ("variant", "rate") if hasattr(defense, key)}
            row |= {"ssim": round(float(ssim(reconstruction[:, 0], x[:, 0]).mean()), 3)}
            row |= {"top-1": round(identify(reconstruction[:, 0], x[:, 0], others=distractors[:, 0]).top1, 3)}
            row |= {"better than the guess": int((victim_psnr > guess_psnr).sum()), "of": len(x)}
            row |= {"total_variation": tuned_attack.total_variation, "iterations": options.iterations}
            print(json.dumps({**row, "s": round(time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    main()
