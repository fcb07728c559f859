"""How strong the attacks are on single images and small batches, at initialisation, undefended or not.

    python benchmarks/attack_strength.py --data FOLDER --out FOLDER [--attacks …] [--victims 1000] [--batch 1]
        [--defense none]

Victims are CIFAR-10 training images 40,000 …, or from `--first` on: weights are chosen on others than those
reported. The blind guess stands beside every score; the first 16 victims and what was made of them are drawn.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import (
    DLG,
    GGL,
    IDLG,
    Attack,
    GradInversion,
    InvertingGradients,
    Observation,
    ThreatModel,
    infer_labels,
)
from refiner.core import Task
from refiner.data import load_dataset
from refiner.data.sheet import write_sheet
from refiner.defenses import Defense, make_defense
from refiner.metrics import assign, lpips, psnr, ssim
from refiner.models import NAMES, build

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
}
GRANTED = ThreatModel(generator=True)
# What a weight of total variation is chosen from, and how far behind the victims lie those it is chosen on.
GRID, TUNED = (1.0, 0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-4), 5000


def tuned(
    attack: InvertingGradients | GradInversion, task: Task, defense: Defense, x: Tensor, y: Tensor
) -> InvertingGradients | GradInversion:
    """The attack with the weight of total variation that gives the best PSNR on these victims."""
    seen = Observation.of(task, defense.protect(task, x, y, seed=TUNED))
    tried = [replace(attack, total_variation=weight) for weight in GRID]

    def score(attack: InvertingGradients | GradInversion) -> float:
        found = attack.reconstruct(seen).x
        images = assign(found, x) if x.shape[1] > 1 else found
        return float(psnr(images.flatten(0, 1), x.flatten(0, 1)).mean())

    return max(tried, key=score)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=NAMES)
    parser.add_argument("--defense", default="none", metavar="NAME:SETTING=VALUE")
    parser.add_argument("--victims", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--first", type=int, default=40_000, help="the first victim's place in the data")
    parser.add_argument("--generator", help="ggl's, instead of the bundled one")
    parser.add_argument("--iterations", type=int, help="fewer than the attack has by default")
    parser.add_argument("--restarts", type=int, help="starts, of which the best by objective counts")
    parser.add_argument("--tune", type=int, metavar="ITERATIONS", help="choose TV so, on other victims")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    images, labels = load_dataset("cifar10", "train", options.data)

    def victims(first: int, count: int, batch: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count * batch)
        x = images[rows].to(device).float().div(255).view(count, batch, *images.shape[1:])
        return x, labels[rows].to(device).view(count, batch)

    for model in options.models:
        for batch in options.batch:
            count = options.victims // batch
            x, y = victims(options.first, count, batch)
            torch.manual_seed(options.seed)
            task = Task(build(model).to(device), example=x[0, :1])
            defense = make_defense(options.defense)
            seen = Observation.of(task, defense.protect(task, x, y, seed=options.seed))
            right = float((infer_labels(seen) == y.sort(1).values).all(1).float().mean())
            colour = psnr(x.mean((-2, -1), keepdim=True).expand_as(x).flatten(0, 1), x.flatten(0, 1)).mean()
            for name in options.attacks:
                attack = ATTACKS[name]
                if isinstance(attack, GGL) and options.generator:
                    attack = replace(attack, generator=options.generator)
                if options.tune and isinstance(attack, InvertingGradients | GradInversion):
                    others = victims(options.first + TUNED, min(count, 8), batch)
                    attack = tuned(replace(attack, iterations=options.tune), task, defense, *others)
                    attack = replace(attack, iterations=ATTACKS[name].iterations)
                wanted = {"iterations": options.iterations, "restarts": options.restarts}
                attack = replace(attack, **{key: value for key, value in wanted.items() if value})
                found = attack.reconstruct(seen, threat=GRANTED, seed=options.seed)
                ordered = assign(found.x, x) if batch > 1 else found.x
                flat, truth = ordered.flatten(0, 1), x.flatten(0, 1)
                error = (ordered - x).square().flatten(2).mean(2).flatten()
                row = {
                    "model": model,
                    "batch": batch,
                    "victims": count,
                    "defense": options.defense,
                    "first": options.first,
                    "attack": name,
                    "iterations": attack.settings()["iterations"],
                    "restarts": attack.settings()["restarts"],
                    "total_variation": attack.settings().get("total_variation"),
                    "median MSE": float(error.median()),
                    "mean MSE": float(error.mean()),
                    "share of failures": float((error > 0.01).float().mean()),
                    "PSNR": float(psnr(flat, truth).mean()),
                    "SSIM": float(ssim(flat, truth).mean()),
                    "LPIPS": float(lpips(flat, truth).mean()),
                    "own mean colour": float(colour),
                    "labels right": right,
                    "diverged": int(found.diverged.sum()),
                    "seconds": round(found.seconds, 1),
                    "seed": options.seed,
                }
                print(json.dumps(row), flush=True)
                with (options.out / "strength.jsonl").open("a") as log:
                    print(json.dumps(row), file=log)
                shown = torch.cat([truth[:16], flat[:16]]).mul(255).round().byte().cpu()
                file = f"{model}-{batch}-{name}.png".replace(",", "").replace(" ", "-")
                write_sheet(options.out / file, shown, columns=16)


if __name__ == "__main__":
    main()
