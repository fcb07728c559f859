"""What is lost by noise that knows the covariance of images at every frequency only, not the full one.

    python benchmarks/noise_covariance.py --data FOLDER --out FOLDER [--strengths 1 2 3]

For noise with the bundled statistics and for noise with the full 3,072 × 3,072 covariance of 20,000 CIFAR-10
training images: the PSNR of the best linear estimate of x from x + s·n, which knows the full covariance of
images and noise, on 1,000 images from 40,000 on. Feeds docs/results/covariance.jsonl, which
docs/results/search.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pixels import pixels
from refiner.data import load_data
from refiner.metrics import psnr
from refiner.shaped_noise import NaturalNoise
from rows import append_rows

PUBLIC, FIRST_VICTIM, VICTIMS = 20_000, 40_000, 1000
FLOOR = 1e-6  # added to the full covariance's diagonal: 20,000 images do not span every direction well


def linear_estimates(noisy: Tensor, mean: Tensor, images: Tensor, noise: Tensor) -> Tensor:
    """The best linear estimates from `noisy [N, D]`, by the covariances `[D, D]` of images and noise."""
    return mean + torch.linalg.solve(images + noise, (noisy - mean).T).T @ images


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    images = load_data("cifar10", "train", root=options.data).images
    public = pixels(images[:PUBLIC], "cpu").flatten(1).double()
    victims = pixels(images[FIRST_VICTIM : FIRST_VICTIM + VICTIMS], "cpu")
    flat, mean = victims.flatten(1).double(), public.mean(0)
    full = (public - mean).T @ (public - mean) / PUBLIC + FLOOR * torch.eye(flat.shape[1], dtype=torch.double)
    statistics = NaturalNoise.bundled()
    unit = torch.eye(flat.shape[1]).view(-1, *statistics.mean.shape)
    frequencies = statistics(unit).flatten(1).double()
    roots = {"full covariance": torch.linalg.cholesky(full).T, "per frequency": frequencies}
    generator = torch.Generator().manual_seed(options.seed)
    white = torch.randn(flat.shape, generator=generator, dtype=torch.double)
    for strength in options.strengths:
        row: dict[str, object] = {"strength": strength, "seed": options.seed}
        for name, root in roots.items():
            noise = strength**2 * root.T @ root
            guess = linear_estimates(flat + strength * white @ root, mean, full, noise)
            row[name] = float(psnr(guess.view_as(victims).float().clamp(0, 1), victims).mean())
        print(json.dumps(row), flush=True)
        append_rows(options.out / "covariance.jsonl", [row])


if __name__ == "__main__":
    main()
