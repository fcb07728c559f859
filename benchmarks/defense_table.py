"""Every defence, at every strength of the paper, against an InvertingGrad that is tuned for it.

    python benchmarks/defense_table.py --data FOLDER --out FOLDER [--victims 200] [--tuning 8] [--batches 4]

LeNet at initialisation, CIFAR-10 training images: victims from 40,000 on, with labels known to the
attacker, whose iterations, weight of total variation and learning rate are chosen for each defence by the
mean PSNR on images from 41,000 on; 800 images from 42,000 on are public. `error` is the mean relative
distance of an upload to the real gradient, `error of a batch` the same for batches of 128. All defences
are attacked together: first all points of all grids, then all victims with the same best point. Feeds
docs/results/defenses.jsonl, which docs/results/defenses.md shows.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import InvertingGradients, Observation, Sweep, ThreatModel, infer_labels
from refiner.audit import Tuning
from refiner.audit.public_images import choose_public_images
from refiner.audit.scoring import Scorer, label_recovery
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import NoDefense, make_defense
from refiner.metrics import Thresholds, judge_group, psnr
from refiner.models import make_model
from rows import append_rows

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
MEANS = ("psnr", "blind_psnr", "ssim", "lpips", "noise", "top1_pixels", "top1_lpips")
LABELS_KNOWN = ThreatModel(labels=True)


def try_points(
    attack: InvertingGradients, points: Sequence[dict[str, float]], observation: Observation, seed: int
) -> Tensor:
    """Reconstructions with each of the settings, which are sorted by the number of iterations."""
    parts = []
    for count, group in groupby(points, key=lambda point: point["iterations"]):
        trials = [{name: value for name, value in point.items() if name != "iterations"} for point in group]
        sweep = Sweep(replace(attack, iterations=int(count)), trials)
        parts.append(sweep.reconstruct(observation, threat=LABELS_KNOWN, seed=seed).x)
        print(f"{len(trials)} settings tried with {count} iterations", flush=True)
    return torch.cat(parts)


def relative_error(task: Task, name: str, x: Tensor, y: Tensor) -> float:
    """The mean relative distance of the uploads of a defence to the real gradient."""
    uploaded, real = (
        uploads(task, defense, x, y, labels=False, seed=0)[1].gradient
        for defense in (make_defense(name), NoDefense())
    )
    return float(((uploaded - real).norm(dim=1) / real.norm(dim=1)).mean())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--only", nargs="+", default=list(STRENGTHS), help="names of defences, or NAME:setting=value"
    )
    parser.add_argument("--victims", type=int, default=200)
    parser.add_argument("--tuning", type=int, default=8)
    parser.add_argument(
        "--batches", type=int, default=4, help="number of batches of 128 for the error of a batch"
    )
    parser.add_argument("--iterations", type=int, default=InvertingGradients().iterations)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels

    def take(first: int, count: int, batch: int = 1) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count * batch)
        victims = images[rows].to(device).float().div(255)
        return victims.unflatten(0, (count, batch)), labels[rows].to(device).unflatten(0, (count, batch))

    x, y = take(40_000, options.victims)
    tuning_x, tuning_y = take(41_000, options.tuning)
    public, _ = take(42_000, 800)
    batch_x, batch_y = take(43_000, options.batches, 128)
    torch.manual_seed(options.seed)
    task = Task(make_model("lenet").to(device), example=x[0])
    attack = InvertingGradients(iterations=options.iterations)
    names = [
        f"{name}:{strength}" if strength else name
        for name in options.only
        for strength in STRENGTHS.get(name, [""])
    ]
    scorer = Scorer.create(
        x.flatten(0, 1), choose_public_images(x.flatten(0, 1), public.flatten(0, 1)), None, Thresholds()
    )

    def observe(name: str, x: Tensor, y: Tensor, seed: int):
        return uploads(task, make_defense(name), x, y, labels=True, seed=seed)[1]

    began = time.perf_counter()
    tuning_observations = [observe(name, tuning_x, tuning_y, 2**33) for name in names]
    all_tuning = replace(
        tuning_observations[0],
        gradient=torch.cat([each.gradient for each in tuning_observations]),
        labels=tuning_y.repeat(len(names), 1),
    )
    points = Tuning(tuning_x, tuning_y).grid(attack)
    tuning_images = try_points(attack, points, all_tuning, options.seed)
    tuning_images = tuning_images.view(len(points), len(names), *tuning_x[:, 0].shape)
    scores = torch.stack(
        [torch.stack([psnr(p, tuning_x[:, 0]).mean() for p in point]) for point in tuning_images]
    )
    print(f"tuned in {time.perf_counter() - began:.0f} s", flush=True)

    groups: dict[int, list[int]] = defaultdict(list)
    for index, best in enumerate(scores.argmax(0).tolist()):
        groups[best].append(index)
    for point, indices in groups.items():
        began = time.perf_counter()
        observations = [observe(names[index], x, y, 2**32) for index in indices]
        all_victims = replace(
            observations[0],
            gradient=torch.cat([each.gradient for each in observations]),
            labels=y.repeat(len(indices), 1),
        )
        reconstruction = replace(attack, **points[point]).reconstruct(
            all_victims, threat=LABELS_KNOWN, seed=options.seed
        )
        for index, upload, images_of_defense in zip(
            indices, observations, reconstruction.x.split(len(x)), strict=True
        ):
            findings, means, candidates = scorer.score(
                images_of_defense.flatten(0, 1),
                [str(i) for i in range(len(x))],
                y,
                1,
                noise=make_defense(names[index]).noise_ratio_applies,
            )
            verdict = judge_group([finding.verdict for finding in findings])
            shares = {"visible": verdict.visible, "identifiable": verdict.identifiable}
            row = {
                "defense": names[index],
                **{name: round(means[name].value, 4) for name in MEANS if name in means},
                "psnr interval": [round(v, 2) for v in (means["psnr"].low, means["psnr"].high)],
                "candidates": candidates,
                **{name: round(share.value, 3) for name, share in shares.items()},
                "labels read": label_recovery(infer_labels(replace(upload, labels=None)), y),
                "error": relative_error(task, names[index], x, y),
                "error of a batch": relative_error(task, names[index], batch_x, batch_y),
                **points[point],
                "tuning psnr": round(float(scores[point, index]), 2),
                "seed": options.seed,
            }
            print(json.dumps(row), flush=True)
            append_rows(options.out / "defenses.jsonl", [row])
        print(
            f"{len(indices)} defences with {points[point]} in {time.perf_counter() - began:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
