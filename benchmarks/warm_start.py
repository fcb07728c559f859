"""Privacy cost of Refiner's warm start: uploads of single images after several passes in batches.

    python benchmarks/warm_start.py --data FOLDER [--images 64] [--batch 32] [--passes 0 5 25]

The model stays at initialisation. A client repeatedly goes through its images in batches and then uploads
the first eight one by one. With a warm start each search begins where the last one ended, and a batch is
matched as a whole, so the gradients of its samples come closer to the real ones each time. Reports the
relative distance of such an upload to the real gradient, and the PSNR of InvertingGrad for each weight of
total variation, without choosing one. Feeds the section on the warm start of docs/results/solver.md.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from refiner.attacks import InvertingGradients, Observation, Sweep, ThreatModel
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import NoDefense, Refiner
from refiner.metrics import psnr
from refiner.models import make_model

# White noise and a search for every batch: with these the warm start of the paper is possible.
WHITE = Refiner(start="centred", alpha=2.2, search="always", error_feedback=False)
SINGLE = 8


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--passes", type=int, nargs="+", default=[0, 5, 25])
    parser.add_argument("--weights", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels
    rows = slice(40_000, 40_000 + options.images)
    x, y = images[rows].to(device).float().div(255), labels[rows].to(device)
    ids = torch.arange(options.images, device=device)
    torch.manual_seed(options.seed)
    task = Task(make_model("lenet").to(device), example=x[:1])
    single = x[:SINGLE, None], y[:SINGLE, None]
    real = NoDefense().protect(task, *single).flat()
    uploads_by_case = {}
    for warm in (True, False):
        client = replace(WHITE, warm_start=warm, secret=bytes(32), memory_size=options.images)
        state = client.init_state()
        generator = torch.Generator().manual_seed(options.seed)
        for passes in range(max(options.passes) + 1):
            if passes in options.passes:
                saved = {name: t.clone() for name, t in state.state_dict().items()}
                uploads_by_case[warm, passes] = client.protect(
                    task, *single, ids=ids[:SINGLE, None], state=state
                ).flat()
                if warm:
                    state.load_state_dict(saved)
            for batch_rows in torch.randperm(options.images, generator=generator).split(options.batch):
                client.protect(task, x[batch_rows], y[batch_rows], ids=ids[batch_rows], state=state)
    # All uploads and weights in one attack; its result has all uploads for the first weight, then the next.
    cases = len(uploads_by_case)
    observation = Observation(
        task, task.parameters(), torch.cat(list(uploads_by_case.values())), 1, single[1].repeat(cases, 1)
    )
    attack = InvertingGradients(iterations=options.steps)
    sweep = Sweep(attack, [{"total_variation": weight} for weight in options.weights])
    reconstruction = sweep.reconstruct(observation, threat=ThreatModel(labels=True), seed=options.seed).x
    truth = single[0].repeat(len(options.weights) * cases, 1, 1, 1, 1)
    scores = psnr(reconstruction[:, 0], truth[:, 0]).view(len(options.weights), cases, SINGLE).mean(2).T
    for ((warm, passes), upload), score in zip(uploads_by_case.items(), scores, strict=True):
        distance = (upload - real).norm(dim=1) / real.norm(dim=1)
        record = {
            "warm": warm,
            "passes": passes,
            "distance": float(distance.mean()),
            "least": float(distance.min()),
        }
        record["PSNR"] = dict(
            zip(map(str, options.weights), [round(float(s), 2) for s in score], strict=True)
        )
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
