"""An attacker who knows Refiner: PSNR of the best linear filter on exactly reconstructed robust images.

    python benchmarks/linear_denoiser.py --data FOLDER

The filter sees a 9×9 window in three colours and is fitted on images that are never victims. A trained
network does better, so this is a lower bound of what a denoiser recovers. Feeds
docs/results/known-defense.jsonl, which docs/results/solver.md shows.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pixels import pixels
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import Refiner
from refiner.metrics import psnr
from refiner.models import make_model

WINDOW = 9


def windows(x: Tensor) -> Tensor:
    """The neighbourhood of every pixel and a constant: `[N · H · W, 3 · 81 + 1]`."""
    pad = WINDOW // 2
    columns = F.unfold(F.pad(x, (pad,) * 4, mode="reflect"), WINDOW).transpose(1, 2).flatten(0, 1)
    return torch.cat([columns, torch.ones(len(columns), 1)], dim=1)


def fit(robust: Tensor, clean: Tensor) -> Tensor:
    """Fit the least-squares filter with the normal equations."""
    gram, moment = 0.0, 0.0
    for r, c in zip(robust.split(100), clean.split(100), strict=True):
        a, b = windows(r).double(), c.permute(0, 2, 3, 1).reshape(-1, 3).double()
        gram, moment = gram + a.T @ a, moment + a.T @ b
    return torch.linalg.solve(gram + 1e-6 * torch.eye(len(gram), dtype=torch.float64), moment).float()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fit", type=int, default=2000)
    options = parser.parse_args(argv)
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels
    torch.manual_seed(0)
    task = Task(make_model("lenet"), example=pixels(images[:2], "cpu"))
    defenses = {
        "default": Refiner(),
        "white": Refiner(start="centred", alpha=2.2),
        "paper, no ε": Refiner.paper(epsilon=None),
    }
    for name, defense in defenses.items():
        start_only = replace(defense, iterations=0)
        public = pixels(images[: options.fit], "cpu")
        robust_public = start_only.protection(
            task, public[:, None], labels[: options.fit, None], seed=1
        ).robust
        assert robust_public is not None
        filter_weights = fit(robust_public[:, 0], public)
        x, y = pixels(images[40_000:40_200], "cpu"), labels[40_000:40_200]
        robust = defense.protection(task, x[:, None], y[:, None], seed=2).robust
        assert robust is not None
        denoised = (
            (windows(robust[:, 0]) @ filter_weights).clamp(0, 1).view(200, 32, 32, 3).permute(0, 3, 1, 2)
        )
        robust_psnr, denoised_psnr = psnr(robust[:, 0].clamp(0, 1), x), psnr(denoised, x)
        print(f"{name}: robust image {robust_psnr.mean():.2f} dB, filtered {denoised_psnr.mean():.2f} dB")


if __name__ == "__main__":
    main()
