"""Soteria with estimated Jacobian norms: overlap with the exactly pruned features, and time of each way.

    python benchmarks/soteria_overlap.py --data FOLDER --model lenet --images 32

The overlap that chance gives is the rate itself. `loop` is the published implementation, a whole backward
pass through the plain model for every feature; `lean loop` computes the gradient with respect to the image
only. Both are timed on `--loop` features and scaled to all of them. Feeds docs/results/soteria.jsonl, which
docs/interpretations.md shows.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pixels import pixels
from refiner.core import Task
from refiner.core.noise import NoiseSource
from refiner.data import load_data
from refiner.defenses.jacobian_norms import estimated_norms, exact_norms, layer_input
from refiner.models import make_model

PROBES = (4, 8, 16, 32, 64)
RATES = (0.1, 0.5, 0.9)


def synchronized_time() -> float:
    """The time in seconds, after all queued work of the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def loop(task: Task, x: Tensor, count: int, lean: bool) -> float:
    """Seconds for one backward pass per feature, extrapolated from `count` features."""
    inputs: list[Tensor] = []
    point = x.clone().requires_grad_()
    handle = task.model.head.register_forward_pre_hook(lambda _m, args: inputs.append(args[0]))
    task.model(point)
    handle.remove()
    (r,) = inputs
    start = synchronized_time()
    for number in range(count):
        cotangent = torch.zeros_like(r)
        cotangent[:, number] = 1
        if lean:
            torch.autograd.grad(r, point, cotangent, retain_graph=True)[0].flatten(1).norm(dim=1)
        else:
            task.model.zero_grad()
            point.grad = None
            r.backward(cotangent, retain_graph=True)
            point.grad.flatten(1).norm(dim=1)
    return (synchronized_time() - start) / count * r.shape[1]


def pruned_features(norms: Tensor, r: Tensor, rate: float) -> Tensor:
    """1 for every feature that Soteria prunes, 0 for the others."""
    score = torch.where(r == 0, torch.inf, norms / r.abs())
    smallest = score.argsort(dim=-1, stable=True)[..., : int(rate * r.shape[-1])]
    return torch.zeros_like(r).scatter(-1, smallest, 1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1, help="number of samples that are timed together")
    parser.add_argument(
        "--loop", type=int, default=64, help="number of features on which the loops are timed"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    images = load_data("cifar10", "train", root=options.data).images
    torch.manual_seed(0)
    task = Task(make_model(options.model).to(device), example=pixels(images[:2], device))
    description = {"model": options.model, "images": options.images}

    x = pixels(images[: options.images], device)[:, None]
    r, exact = layer_input(task, x, "head"), exact_norms(task, x, "head", chunk=256)
    for probes in PROBES:
        norms = estimated_norms(task, x, "head", probes=probes, noise=NoiseSource(seed=0), chunk=256)
        row = {**description, "features": r.shape[-1], "probes": probes}
        for rate in RATES:
            in_both = pruned_features(norms, r, rate) * pruned_features(exact, r, rate)
            shares = in_both.sum(-1) / int(rate * r.shape[-1])
            percent = round(100 * rate)
            row |= {
                f"overlap_{percent}": round(float(shares.mean()), 4),
                f"least_{percent}": round(float(shares.min()), 4),
            }
        print(json.dumps(row), flush=True)

    x = pixels(images[: options.batch], device)[None]
    methods: dict[str, Callable[[], object]] = {"exact": lambda: exact_norms(task, x, "head")}
    for probes in (4, 16, 64):
        methods[f"estimated {probes}"] = partial(
            estimated_norms, task, x, "head", probes=probes, noise=NoiseSource(seed=0)
        )
    count = min(options.loop, r.shape[-1])
    best = dict.fromkeys(("loop", "lean loop", *methods), math.inf)
    # The shortest of several runs, as other jobs may use the machine.
    for _ in range(options.repeats):
        for name, lean in (("loop", False), ("lean loop", True)):
            best[name] = min(best[name], loop(task, x[0], count, lean))
        for name, method in methods.items():
            start = synchronized_time()
            method()
            best[name] = min(best[name], synchronized_time() - start)
    for name, seconds in best.items():
        row = {
            "model": options.model,
            "device": device,
            "batch": options.batch,
            "threads": options.threads,
            "way": name,
        }
        row |= {"s": round(seconds, 4)}
        row |= {f"{other} / this": round(best[other] / seconds, 1) for other in ("loop", "lean loop")}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
