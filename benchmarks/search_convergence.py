"""How close Refiner's search brings the gradient of a batch to the real one, by the work it may do.

    python benchmarks/search_convergence.py --data FOLDER --out FOLDER [--models lenet resnet10 vit]
        [--weights WEIGHTS.safetensors]

For white and shaped noise of several strengths and for several ι: the relative distance ‖upload − g‖ / ‖g‖,
the mean of `--clients` batches of `--batch` CIFAR-10 training images from 40,000 on, the root mean square
of the change of pixels that the search made, and what the robust data then reveal: the PSNR of the best
linear estimate of every frequency, fitted to one half of the images and scored on the other. Beside it
PyTorch's L-BFGS with a strong Wolfe search and a history of 20, with as many evaluations, on the first batch.
`--weights` is a state of the (one) model. Feeds docs/results/search.jsonl, which docs/results/search.md
shows.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pixels import client_batches
from refiner.core import Task, flatten, gradients
from refiner.data import load_data
from refiner.defenses import NoDefense, Refiner
from refiner.defenses.refine.solver import evaluations
from refiner.metrics import psnr
from refiner.models import MODELS, make_model
from refiner.models.model_weights import load_model_weights
from refiner.shaped_noise import NaturalNoise
from rows import append_rows

SEARCHED = Refiner(search="always", white=0.0, error_feedback=False, radius=None)
STARTS = {
    "white": replace(SEARCHED, start="centred", alpha=2.2),
    **{f"natural {alpha:g}": replace(SEARCHED, alpha=alpha) for alpha in (1.0, 2.0, 3.0)},
    **{f"natural 3, radius {radius:g}": replace(SEARCHED, radius=radius) for radius in (0.2, 0.5, 1.0, 2.0)},
    **{f"natural 3, white {white:g}": replace(SEARCHED, white=white) for white in (0.3, 0.8, 1.0)},
    **{
        f"natural 3, white {white:g}, radius 1": replace(SEARCHED, white=white, radius=1.0)
        for white in (0.8, 1.0)
    },
}
ITERATIONS = (0, 6, 12, 24, 48, 95)


def relative_distance(upload: Tensor, real: Tensor) -> float:
    """‖upload − real‖ / ‖real‖, the mean over victims."""
    return float(((upload - real).norm(dim=1) / real.norm(dim=1)).mean())


def linear_estimate(robust: Tensor, x: Tensor) -> float:
    """PSNR in dB of estimates from robust images, each frequency by a linear fit on the other half."""
    statistics = NaturalNoise.bundled(x.device)
    given, wanted = (statistics.whiten(images - statistics.mean) for images in (robust, x))
    half = len(x) // 2
    factor = (given[:half] * wanted[:half]).sum(0) / given[:half].square().sum(0)
    return float(psnr((statistics(factor * given[half:]) + statistics.mean).clamp(0, 1), x[half:]).mean())


def torch_distance(task: Task, start: Tensor, y: Tensor, real: Tensor, count: int) -> float:
    """The relative distance that PyTorch's L-BFGS reaches on pixels with `count` evaluations of one batch."""
    x = start.clone().requires_grad_()
    lowest = torch.inf
    optimizer = torch.optim.LBFGS(
        [x],
        max_iter=10**6,
        max_eval=count,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=0.0,
        tolerance_change=0.0,
    )

    def closure() -> Tensor:
        nonlocal lowest
        with torch.enable_grad():
            distance = (flatten(gradients(task, x, y)) - real).norm() / real.norm()
            (x.grad,) = torch.autograd.grad(distance.square(), x)
        lowest = min(lowest, float(distance.detach()))
        return distance.square().detach()

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return lowest


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet10", "vit"], choices=MODELS)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--state", default="initial", help="what to call the model's state")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--iterations", type=int, nargs="+", default=ITERATIONS)
    parser.add_argument("--noise", nargs="+", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    x, y = client_batches(cifar10, options.clients, options.batch, device)
    for name in options.models:
        torch.manual_seed(options.seed)
        network = make_model(name)
        if options.weights is not None:
            load_model_weights(network, options.weights)
        task = Task(network.to(device), example=x[0])
        real = NoDefense().protect(task, x, y).flat()
        for noise in options.noise:
            defense = STARTS[noise]
            start = replace(defense, iterations=0).protection(task, x, y, seed=1).robust
            assert start is not None
            for iterations in options.iterations:
                began = time.perf_counter()
                result = replace(defense, iterations=iterations).protection(task, x, y, seed=1)
                assert result.robust is not None
                count = evaluations(iterations)
                row = {
                    "model": name,
                    "state": options.state,
                    "noise": noise,
                    "iterations": iterations,
                    "evaluations": count,
                    "clients": options.clients,
                    "batch": options.batch,
                    "distance": relative_distance(result.update.flat(), real),
                    "from x*": linear_estimate(result.robust.flatten(0, 1), x.flatten(0, 1)),
                    "change": float((result.robust - start).square().mean().sqrt()),
                    "seconds": round(time.perf_counter() - began, 2),
                    "seed": options.seed,
                }
                if count and defense.radius is None:
                    row["PyTorch distance"] = torch_distance(task, start[:1], y[:1], real[:1], count)
                print(json.dumps(row), flush=True)
                append_rows(options.out / "search.jsonl", [row])


if __name__ == "__main__":
    main()
