"""Soteria: how many of the pruned features an estimate finds, and what a loop, all rows and an estimate take.

    python benchmarks/soteria_overlap.py --data FOLDER --model lenet --images 32

The loop is the published one: a whole backward pass through the plain model for every feature. The lean loop
asks for the slope in the image alone. Both run on `--loop` features and are scaled to all of them. Prints a
JSON object a row. The overlap that chance gives is the rate itself.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from federated import pixels
from refiner.core import Task
from refiner.core.noise import NoiseSource
from refiner.data import load_dataset
from refiner.defenses.sensitivity import estimated, exact, features
from refiner.models import build

PROBES = (4, 8, 16, 32, 64)
RATES = (0.1, 0.5, 0.9)


def now() -> float:
    """Seconds, when the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def loop(task: Task, x: Tensor, count: int, lean: bool) -> float:
    """Seconds for one pass a feature, from `count` of them; the forward pass is not counted."""
    seen: list[Tensor] = []
    point = x.clone().requires_grad_()
    handle = task.model.head.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    task.model(point)
    handle.remove()
    (r,) = seen
    began = now()
    for number in range(count):
        one = torch.zeros_like(r)
        one[:, number] = 1
        if lean:
            torch.autograd.grad(r, point, one, retain_graph=True)[0].flatten(1).norm(dim=1)
        else:
            task.model.zero_grad()
            point.grad = None
            r.backward(one, retain_graph=True)
            point.grad.flatten(1).norm(dim=1)
    return (now() - began) / count * r.shape[1]


def pruned(norms: Tensor, r: Tensor, rate: float) -> Tensor:
    """A one for every pruned feature, as Soteria chooses them."""
    score = torch.where(r == 0, torch.inf, norms / r.abs())
    chosen = score.argsort(dim=-1, stable=True)[..., : int(rate * r.shape[-1])]
    return torch.zeros_like(r).scatter(-1, chosen, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1, help="samples that are timed together")
    parser.add_argument("--loop", type=int, default=64, help="features that the loops are timed on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    images, _ = load_dataset("cifar10", "train", options.data)
    torch.manual_seed(0)
    task = Task(build(options.model).to(device), example=pixels(images[:2], device))
    about = {"model": options.model, "images": options.images}

    x = pixels(images[: options.images], device)[:, None]
    r, wanted = features(task, x, "head"), exact(task, x, "head", chunk=256)
    for probes in PROBES:
        norms = estimated(task, x, "head", probes=probes, noise=NoiseSource(seed=0), chunk=256)
        row = {**about, "features": r.shape[-1], "probes": probes}
        for rate in RATES:
            both = pruned(norms, r, rate) * pruned(wanted, r, rate)
            shares = both.sum(-1) / int(rate * r.shape[-1])
            row |= {
                f"overlap at {rate}": round(float(shares.mean()), 4),
                f"least at {rate}": round(float(shares.min()), 4),
            }
        print(json.dumps(row), flush=True)

    x = pixels(images[: options.batch], device)[None]
    ways: dict[str, Callable[[], object]] = {"exact": lambda: exact(task, x, "head")}
    for probes in (4, 16, 64):
        ways[f"estimated {probes}"] = partial(
            estimated, task, x, "head", probes=probes, noise=NoiseSource(seed=0)
        )
    count = min(options.loop, r.shape[-1])
    best = dict.fromkeys(("loop", "lean loop", *ways), math.inf)
    # The shortest of some rounds, each with all ways: others work on this machine.
    for _ in range(options.repeats):
        for name, lean in (("loop", False), ("lean loop", True)):
            best[name] = min(best[name], loop(task, x[0], count, lean))
        for name, way in ways.items():
            began = now()
            way()
            best[name] = min(best[name], now() - began)
    for name, taken in best.items():
        row = {
            "model": options.model,
            "device": device,
            "batch": options.batch,
            "threads": options.threads,
            "way": name,
        }
        row |= {"s": round(taken, 4)}
        row |= {f"{other} / this": round(best[other] / taken, 1) for other in ("loop", "lean loop")}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
