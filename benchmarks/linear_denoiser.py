"""An attacker who knows the defence: robust images, rebuilt perfectly, through the best linear filter.

    python benchmarks/linear_denoiser.py --data FOLDER

The filter sees a 9×9 window in three colours and is fitted on images that are never victims. It bounds from
below what a denoiser can do: a trained network does better.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from federated import pixels
from inverting import psnr
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import Refiner
from refiner.models import build

WINDOW = 9


def windows(x: Tensor) -> Tensor:
    """Every pixel's neighbourhood and a constant: `[N · H · W, 3 · 81 + 1]`."""
    pad = WINDOW // 2
    columns = F.unfold(F.pad(x, (pad,) * 4, mode="reflect"), WINDOW).transpose(1, 2).flatten(0, 1)
    return torch.cat([columns, torch.ones(len(columns), 1)], dim=1)


def fit(robust: Tensor, clean: Tensor) -> Tensor:
    """The filter with the least squared error, by the normal equations."""
    gram, moment = 0.0, 0.0
    for r, c in zip(robust.split(100), clean.split(100), strict=True):
        a, b = windows(r).double(), c.permute(0, 2, 3, 1).reshape(-1, 3).double()
        gram, moment = gram + a.T @ a, moment + a.T @ b
    return torch.linalg.solve(gram + 1e-6 * torch.eye(len(gram), dtype=torch.float64), moment).float()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fit", type=int, default=2000)
    options = parser.parse_args()
    images, labels = load_dataset("cifar10", "train", options.data)
    torch.manual_seed(0)
    task = Task(build("lenet"), example=pixels(images[:2], "cpu"))
    # D is 1 from the start in the default, so that β changes nothing there but the time.
    tried = {
        "default": Refiner(beta=0.0),
        "default, α 1.8": Refiner(alpha=1.8, beta=0.0),
        "paper, no ε": Refiner.paper(epsilon=None),
    }
    for name, defense in tried.items():
        quick = replace(defense, iterations=0, floor=0.0)
        public = pixels(images[: options.fit], "cpu")
        start, _ = quick.refine(task, public[:, None], labels[: options.fit, None], seed=1)
        weights = fit(start[:, 0], public)
        x, y = pixels(images[40_000:40_200], "cpu"), labels[40_000:40_200]
        robust, _ = defense.refine(task, x[:, None], y[:, None], seed=2)
        guess = (windows(robust[:, 0]) @ weights).clamp(0, 1).view(200, 32, 32, 3).permute(0, 3, 1, 2)
        before, after = psnr(robust[:, 0].clamp(0, 1), x), psnr(guess, x)
        print(f"{name}: robust image {before.mean():.2f} dB, filtered {after.mean():.2f} dB")


if __name__ == "__main__":
    main()
