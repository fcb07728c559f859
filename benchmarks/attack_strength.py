"""How strong the attacks are on undefended single pictures and small batches, at initialisation.

    python benchmarks/attack_strength.py --data FOLDER --out FOLDER [--attacks …] [--victims 1000] [--batch 1]

Victims are CIFAR-10 training images 40,000 …; the blind guess stands beside every score.
"""

import argparse
import json
from pathlib import Path

import torch

from refiner.attacks import IDLG, GradInversion, InvertingGradients, Observation, infer_labels
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import NoDefense
from refiner.metrics import assign, psnr
from refiner.models import NAMES, build

ATTACKS = {
    "idlg": IDLG(),
    "inverting": InvertingGradients(),
    "inverting, TV 1e-4": InvertingGradients(total_variation=1e-4),
    "inverting, TV 1e-2": InvertingGradients(total_variation=1e-2),
    "inverting, paper": InvertingGradients.paper(),
    "gradinversion": GradInversion(),
    "gradinversion, TV 1e-3": GradInversion(total_variation=1e-3),
    "gradinversion, TV 1e-5": GradInversion(total_variation=1e-5),
    "gradinversion, lr 0.03": GradInversion(lr=0.03),
    "gradinversion, paper": GradInversion.paper(),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=NAMES)
    parser.add_argument("--victims", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    images, labels = load_dataset("cifar10", "train", options.data)
    for model in options.models:
        for batch in options.batch:
            count = options.victims // batch
            rows = slice(40_000, 40_000 + count * batch)
            x = images[rows].to(device).float().div(255).view(count, batch, *images.shape[1:])
            y = labels[rows].to(device).view(count, batch)
            torch.manual_seed(options.seed)
            task = Task(build(model).to(device), example=x[0, :1])
            seen = Observation.of(task, NoDefense().protect(task, x, y))
            right = float((infer_labels(seen) == y.sort(1).values).all(1).float().mean())
            colour = psnr(x.mean((-2, -1), keepdim=True).expand_as(x).flatten(0, 1), x.flatten(0, 1)).mean()
            for name in options.attacks:
                found = ATTACKS[name].reconstruct(seen, seed=options.seed)
                pictures = assign(found.x, x) if batch > 1 else found.x
                error = (pictures - x).square().flatten(2).mean(2).flatten()
                row = {
                    "model": model,
                    "batch": batch,
                    "victims": count,
                    "attack": name,
                    "median MSE": float(error.median()),
                    "mean MSE": float(error.mean()),
                    "share of failures": float((error > 0.01).float().mean()),
                    "PSNR": float(psnr(pictures.flatten(0, 1), x.flatten(0, 1)).mean()),
                    "own mean colour": float(colour),
                    "labels right": right,
                    "diverged": int(found.diverged.sum()),
                    "seconds": round(found.seconds, 1),
                    "seed": options.seed,
                }
                print(json.dumps(row), flush=True)
                with (options.out / "strength.jsonl").open("a") as log:
                    print(json.dumps(row), file=log)


if __name__ == "__main__":
    main()
