"""What a warm start costs in privacy: a client's uploads of single images after passes in batches.

    python benchmarks/warm_start.py --data FOLDER [--images 64] [--batch 32] [--passes 0 5 25]

The model is the initial one throughout. A client goes through its images in batches, again and again; then
it uploads the first eight of them one by one. With a warm start each search begins where the last one ended,
and a batch is matched as one: its samples' own gradients come nearer each time. Distance: of such an upload
to the real gradient, relative to it. PSNR: of InvertingGrad (`inverting.py`), for each weight of total
variation, none chosen.
"""

import argparse
import json
from pathlib import Path

import torch

from inverting import invert
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import NoDefense, Refiner
from refiner.metrics import psnr
from refiner.models import build

SINGLE = 8


def main() -> None:
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
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = load_dataset("cifar10", "train", options.data)
    rows = slice(40_000, 40_000 + options.images)
    x, y = images[rows].to(device).float().div(255), labels[rows].to(device)
    ids = torch.arange(options.images, device=device)
    torch.manual_seed(options.seed)
    task = Task(build("lenet").to(device), example=x[:1])
    single = x[:SINGLE, None], y[:SINGLE, None]
    real = NoDefense().protect(task, *single).flat()
    seen = {}
    for warm in (True, False):
        client = Refiner(warm_start=warm, secret=bytes(32), remember=options.images)
        order = torch.Generator().manual_seed(options.seed)
        for done in range(max(options.passes) + 1):
            if done in options.passes:
                before = {name: t.clone() for name, t in client.state().items()}
                seen[warm, done] = client.protect(task, *single, ids=ids[:SINGLE, None]).flat()
                if warm:
                    client.restore(before)
            for pick in torch.randperm(options.images, generator=order).split(options.batch):
                client.protect(task, x[pick], y[pick], ids=ids[pick])
    # All of them in one attack.
    uploads = torch.cat([upload for upload in seen.values() for _ in options.weights])
    weights = torch.tensor(options.weights, device=device).repeat_interleave(SINGLE).repeat(len(seen))
    truth = single[0].repeat(len(seen) * len(options.weights), 1, 1, 1, 1)
    found = invert(
        task, uploads, single[1].repeat(len(seen) * len(options.weights), 1), weights, steps=options.steps
    )
    scores = psnr(found[:, 0], truth[:, 0]).view(len(seen), len(options.weights), SINGLE).mean(2)
    for ((warm, done), upload), score in zip(seen.items(), scores, strict=True):
        away = (upload - real).norm(dim=1) / real.norm(dim=1)
        told = {"warm": warm, "passes": done, "distance": float(away.mean()), "least": float(away.min())}
        told["PSNR"] = dict(zip(map(str, options.weights), [round(float(s), 2) for s in score], strict=True))
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
