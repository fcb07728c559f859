"""Strength of the attacks: scores of each attack on single images and small batches, at initialisation.

    python benchmarks/attack_strength.py --data FOLDER --out FOLDER [--attacks …] [--victims 1000] [--batch 1]
        [--defense none]

Victims are CIFAR-10 training images from 40,000 on, or from `--first` on, so that settings can be tuned on
other images than those reported. A row has the PSNR of a blind guess, the victim's own mean colour, next to
the scores of the attack; the first 16 victims and their reconstructions are drawn. Feeds
docs/results/attacks.jsonl, which docs/results/attacks.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import (
    DLG,
    GGL,
    IDLG,
    ActivationInversion,
    Attack,
    GradInversion,
    InvertingGradients,
    Observation,
    ThreatModel,
    infer_labels,
)
from refiner.core import Task
from refiner.data import load_data
from refiner.data.image_grid import write_image_grid
from refiner.defenses import Defense, make_defense
from refiner.metrics import assign, lpips, psnr, ssim
from refiner.models import MODELS, make_model
from rows import append_rows

WEIGHTS = (1.0, 0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
ATTACKS: dict[str, Attack] = {
    "dlg": DLG(),
    "idlg": IDLG(),
    "inverting": InvertingGradients(),
    "inverting, paper": InvertingGradients.paper(),
    **{f"inverting, TV {w:g}": InvertingGradients(total_variation=w) for w in WEIGHTS},
    "gradinversion": GradInversion(),
    "gradinversion, paper": GradInversion.paper(),
    **{f"gradinversion, TV {w:g}": GradInversion(total_variation=w) for w in WEIGHTS},
    "ggl": GGL(),
    "ggl, paper": GGL.paper(),
    "activations": ActivationInversion(),
}
# The others; it fits the ResNets and not the default model.
DEFAULT_ATTACKS = [name for name in ATTACKS if name != "activations"]
THREAT = ThreatModel(generator=True)
# Weights of total variation to choose from, and the distance of the tuning images from the victims.
TUNING_WEIGHTS, TUNING_OFFSET = (1.0, 0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-4), 5000


def tune_total_variation(
    attack: InvertingGradients | GradInversion, task: Task, defense: Defense, x: Tensor, y: Tensor
) -> InvertingGradients | GradInversion:
    """Return the attack with the weight of total variation that scores the highest PSNR on these victims."""
    observation = Observation.of(task, defense.protect(task, x, y, seed=TUNING_OFFSET))
    candidates = [replace(attack, total_variation=weight) for weight in TUNING_WEIGHTS]

    def score(attack: InvertingGradients | GradInversion) -> float:
        reconstruction = attack.reconstruct(observation).x
        images = assign(reconstruction, x) if x.shape[1] > 1 else reconstruction
        return float(psnr(images.flatten(0, 1), x.flatten(0, 1)).mean())

    return max(candidates, key=score)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attacks", nargs="+", default=DEFAULT_ATTACKS, choices=list(ATTACKS))
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=MODELS)
    parser.add_argument("--defense", default="none", metavar="NAME:SETTING=VALUE")
    parser.add_argument("--victims", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--first", type=int, default=40_000, help="index of the first victim")
    parser.add_argument("--generator", help="generator for ggl, instead of the bundled one")
    parser.add_argument("--iterations", type=int, help="instead of the attack's default")
    parser.add_argument("--restarts", type=int, help="starts; the lowest objective counts")
    parser.add_argument("--tune", type=int, metavar="ITERATIONS", help="tune TV on other victims")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    cifar10 = load_data("cifar10", "train", root=options.data)

    def victims(first: int, count: int, batch: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count * batch)
        x = cifar10.images[rows].to(device).float().div(255).view(count, batch, *cifar10.images.shape[1:])
        return x, cifar10.labels[rows].to(device).view(count, batch)

    for model in options.models:
        for batch in options.batch:
            count = options.victims // batch
            x, y = victims(options.first, count, batch)
            torch.manual_seed(options.seed)
            task = Task(make_model(model).to(device), example=x[0, :1])
            defense = make_defense(options.defense)
            observation = Observation.of(task, defense.protect(task, x, y, seed=options.seed))
            label_accuracy = float((infer_labels(observation) == y.sort(1).values).all(1).float().mean())
            guess_psnr = psnr(
                x.mean((-2, -1), keepdim=True).expand_as(x).flatten(0, 1), x.flatten(0, 1)
            ).mean()
            for name in options.attacks:
                attack = ATTACKS[name]
                if isinstance(attack, GGL) and options.generator:
                    attack = replace(attack, generator=options.generator)
                if options.tune and isinstance(attack, InvertingGradients | GradInversion):
                    tuning_victims = victims(options.first + TUNING_OFFSET, min(count, 8), batch)
                    attack = tune_total_variation(
                        replace(attack, iterations=options.tune), task, defense, *tuning_victims
                    )
                    attack = replace(attack, iterations=ATTACKS[name].iterations)
                overrides = {"iterations": options.iterations, "restarts": options.restarts}
                known = attack.settings()
                attack = replace(
                    attack, **{k: value for k, value in overrides.items() if value and k in known}
                )
                reconstruction = attack.reconstruct(observation, threat=THREAT, seed=options.seed)
                matched = assign(reconstruction.x, x) if batch > 1 else reconstruction.x
                flat, truth = matched.flatten(0, 1), x.flatten(0, 1)
                errors = (matched - x).square().flatten(2).mean(2).flatten()
                row = {
                    "model": model,
                    "batch": batch,
                    "victims": count,
                    "defense": options.defense,
                    "first": options.first,
                    "attack": name,
                    "iterations": attack.settings()["iterations"],
                    "restarts": attack.settings().get("restarts", 1),
                    "total_variation": attack.settings().get("total_variation"),
                    "median MSE": float(errors.median()),
                    "mean MSE": float(errors.mean()),
                    "share of failures": float((errors > 0.01).float().mean()),
                    "PSNR": float(psnr(flat, truth).mean()),
                    "SSIM": float(ssim(flat, truth).mean()),
                    "LPIPS": float(lpips(flat, truth).mean()),
                    "own mean colour": float(guess_psnr),
                    "labels right": label_accuracy,
                    "diverged": int(reconstruction.diverged.sum()),
                    "seconds": round(reconstruction.seconds, 1),
                    "seed": options.seed,
                }
                print(json.dumps(row), flush=True)
                append_rows(options.out / "attacks.jsonl", [row])
                drawn = torch.cat([truth[:16], flat[:16]]).mul(255).round().byte().cpu()
                file = f"{model}-{batch}-{name}.png".replace(",", "").replace(" ", "-")
                write_image_grid(options.out / file, drawn, columns=16)


if __name__ == "__main__":
    main()
