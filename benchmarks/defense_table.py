"""Every defence at every strength of the paper against an InvertingGrad that is tuned for it.

    python benchmarks/defense_table.py --data FOLDER --out FOLDER [--victims 200] [--tuning 8] [--batches 4]

LeNet at initialisation, CIFAR-10 training images: victims from 40,000 on, their labels known to the attacker;
its weight of total variation and its rate are chosen for each defence by the mean PSNR on images from 41,000
on; 800 more from 42,000 on are public. `error` is the mean relative distance of an upload to the real
gradient, `error of a batch` the same for batches of 128. One JSON object a row in `defenses.jsonl`.
All defences are attacked together: first all points of all grids, then all victims with the same best point.
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import InvertingGradients, Sweep, ThreatModel, infer_labels
from refiner.audit import Tuning
from refiner.audit.public_images import choose_public
from refiner.audit.scoring import Scorer, recovered
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import NoDefense, make_defense
from refiner.metrics import Thresholds, psnr
from refiner.models import build

TENTHS = [f"0.{digit}" for digit in range(1, 10)]
STRENGTHS = {
    "none": [""],
    "refiner": [""],
    "refiner-paper": [f"epsilon={e}" for e in (0.01, 0.03, 0.05, 0.07, 0.1, 0.3, 0.5, 0.7, 0.9)],
    "dp-gaussian": [f"magnitude=1e{power}" for power in range(-6, 3)],
    "dp-laplace": [f"magnitude=1e{power}" for power in range(-6, 3)],
    "gq": [f"bits={bits}" for bits in (28, 24, 20, 16, 12, 8, 4, 2, 1)],
    "pruning": [f"rate={rate}" for rate in TENTHS],
    "soteria": [f"rate={rate}" for rate in TENTHS],
}
SHOWN = ("psnr", "blind_psnr", "ssim", "lpips", "noise", "top1_pixels", "top1_lpips")
KNOWN = ThreatModel(labels=True)


def error(task: Task, name: str, x: Tensor, y: Tensor) -> float:
    """The mean relative distance of what `name` uploads to the real gradient."""
    seen, real = (
        uploads(task, defense, x, y, labels=False, seed=0)[1].gradient
        for defense in (make_defense(name), NoDefense())
    )
    return float(((seen - real).norm(dim=1) / real.norm(dim=1)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(STRENGTHS), help="names, or NAME:setting=value")
    parser.add_argument("--victims", type=int, default=200)
    parser.add_argument("--tuning", type=int, default=8)
    parser.add_argument("--batches", type=int, default=4, help="of 128, for the error of a batch")
    parser.add_argument("--iterations", type=int, default=InvertingGradients().iterations)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    images, labels = load_dataset("cifar10", "train", options.data)

    def take(first: int, count: int, batch: int = 1) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count * batch)
        victims = images[rows].to(device).float().div(255)
        return victims.unflatten(0, (count, batch)), labels[rows].to(device).unflatten(0, (count, batch))

    x, y = take(40_000, options.victims)
    other, other_y = take(41_000, options.tuning)
    public, _ = take(42_000, 800)
    large, large_y = take(43_000, options.batches, 128)
    torch.manual_seed(options.seed)
    task = Task(build("lenet").to(device), example=x[0])
    attack = InvertingGradients(iterations=options.iterations)
    names = [
        f"{name}:{strength}" if strength else name
        for name in options.only
        for strength in STRENGTHS.get(name, [""])
    ]
    scorer = Scorer.over(
        x.flatten(0, 1), choose_public(x.flatten(0, 1), public.flatten(0, 1)), None, Thresholds()
    )

    def see(name: str, x: Tensor, y: Tensor, seed: int):
        return uploads(task, make_defense(name), x, y, labels=True, seed=seed)[1]

    began = time.perf_counter()
    tuned = [see(name, other, other_y, 2**33) for name in names]
    every = replace(
        tuned[0], gradient=torch.cat([one.gradient for one in tuned]), labels=other_y.repeat(len(names), 1)
    )
    points = Tuning(other, other_y).grid(attack)
    rebuilt = Sweep(attack, points).reconstruct(every, threat=KNOWN, seed=options.seed)
    tried = rebuilt.x.view(len(points), len(names), *other[:, 0].shape)
    scores = torch.stack([torch.stack([psnr(p, other[:, 0]).mean() for p in point]) for point in tried])
    print(f"tuned in {time.perf_counter() - began:.0f} s", flush=True)

    groups: dict[int, list[int]] = defaultdict(list)
    for place, best in enumerate(scores.argmax(0).tolist()):
        groups[best].append(place)
    for point, places in groups.items():
        began = time.perf_counter()
        seen = [see(names[place], x, y, 2**32) for place in places]
        together = replace(
            seen[0],
            gradient=torch.cat([one.gradient for one in seen]),
            labels=y.repeat(len(places), 1),
        )
        found = replace(attack, **points[point]).reconstruct(together, threat=KNOWN, seed=options.seed)
        for place, upload, made in zip(places, seen, found.x.split(len(x)), strict=True):
            findings, means, candidates = scorer.score(
                made.flatten(0, 1), [str(i) for i in range(len(x))], y, 1
            )
            row = {
                "defense": names[place],
                **{name: round(means[name].value, 4) for name in SHOWN},
                "psnr interval": [round(v, 2) for v in (means["psnr"].low, means["psnr"].high)],
                "candidates": candidates,
                "exposed": round(sum(f.verdict.level == "exposed" for f in findings) / len(findings), 3),
                "labels read": recovered(infer_labels(replace(upload, labels=None)), y),
                "error": error(task, names[place], x, y),
                "error of a batch": error(task, names[place], large, large_y),
                **points[point],
                "tuning psnr": round(float(scores[point, place]), 2),
                "seed": options.seed,
            }
            print(json.dumps(row), flush=True)
            with (options.out / "defenses.jsonl").open("a") as log:
                print(json.dumps(row), file=log)
        print(
            f"{len(places)} defences with {points[point]} in {time.perf_counter() - began:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
