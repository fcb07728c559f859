"""What the metrics say of images that no attack made: distorted originals and blind guesses.

    python benchmarks/metric_examples.py --out docs/results/metrics.jsonl

Scores the 200 bundled images: how often a distorted image is identified among them, and how the three guesses
that need no gradient score. Seconds on a CPU. Feeds docs/results/metrics.jsonl, which docs/metrics.md shows.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from refiner.data import load_sample
from refiner.metrics import best_guesses, blind_guess, identify, noise_ratio, psnr
from refiner.metrics.distortions import flip, mean_colour, noise, rotate, shift
from rows import append_rows


def identification_rows(images: Tensor, seed: int) -> Iterator[dict[str, object]]:
    """How often a distorted image's own original is the closest of all, by both methods."""
    distorted = {f"noise, σ {sigma:g}": noise(images, sigma, seed) for sigma in (0.1, 0.3, 1, 4)} | {
        "flip": flip(images),
        "shift by 4 pixels": shift(images, 4),
        "rotation by 90°": rotate(images),
        "own mean colour": mean_colour(images),
    }
    for name, reconstructed in distorted.items():
        yield {
            "example": "identification",
            "reconstruction": name,
            "psnr": float(psnr(reconstructed, images).mean()),
            "by_pixels": identify(reconstructed, images).top1,
            "by_lpips": identify(reconstructed, images, by="lpips").top1,
        }


def guess_rows(images: Tensor) -> Iterator[dict[str, object]]:
    """The mean score of every guess by three metrics, and of the best guess for each image."""
    visible = {"psnr": 15.0, "ssim": 0.5}
    for metric in ("psnr", "ssim", "lpips"):
        guess = blind_guess(images, images, metric)
        row: dict[str, object] = {"example": "guess", "metric": metric, "best": float(guess.best.mean())}
        row |= {name: float(scores.mean()) for name, scores in guess.scores.items()}
        if metric in visible:
            row |= {
                f"{name}, visible": float((scores >= visible[metric]).double().mean())
                for name, scores in {**guess.scores, "best": guess.best}.items()
            }
        else:
            row["lowest"] = float(guess.best.min())
        yield row
    best = best_guesses(images, images)
    yield {
        "example": "best guess by PSNR",
        "noise_ratio": float(noise_ratio(best).mean()),
        "by_pixels": identify(best, images).top1,
        "by_lpips": identify(best, images, by="lpips").top1,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/metrics.jsonl"))
    options = parser.parse_args(argv)
    images = load_sample().images
    rows = [*identification_rows(images, options.seed), *guess_rows(images)]
    for row in rows:
        print(*(f"{key} {value:.3f}" if isinstance(value, float) else value for key, value in row.items()))
    append_rows(options.out, rows, seed=options.seed, images=len(images))


if __name__ == "__main__":
    main()
