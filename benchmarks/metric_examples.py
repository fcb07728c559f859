"""What the metrics say of images that no attack made: distorted originals and blind guesses.

    python benchmarks/metric_examples.py --out docs/results/metrics.jsonl

Scores the 200 bundled images: how often a distorted image is identified among them, how often it counts as
visible, and how the three guesses that need no gradient score. Seconds on a CPU. Feeds
docs/results/metrics.jsonl, which docs/metrics.md shows.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.data import load_sample
from refiner.metrics import (
    best_guesses,
    blind_guess,
    features,
    identify,
    judge_each,
    lpips,
    noise_ratio,
    psnr,
    ssim,
)
from refiner.metrics.distortions import (
    colour_jitter,
    flip,
    mean_colour,
    noise,
    rotate,
    scale,
    shift,
    uniform_noise,
)
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


def thumbnail(images: Tensor, side: int) -> Tensor:
    """Images reduced to `side` × `side` pixels and enlarged again."""
    small = F.adaptive_avg_pool2d(images, side)
    return F.interpolate(small, size=images.shape[2:], mode="bilinear", align_corners=False)


def visibility_rows(images: Tensor, seed: int) -> Iterator[dict[str, object]]:
    """How many distorted images are visible by each criterion, by any, and by PSNR without structure."""
    distorted = {
        "shift by a pixel": shift(images),
        "noise, σ 0.065": noise(images, seed=seed),
        "noise, σ 0.15": noise(images, 0.15, seed),
        "colour jitter": colour_jitter(images, seed=seed),
        "flip": flip(images),
        "scale: every pixel × 0.4": scale(images),
        "rotation by 90°": rotate(images),
        "thumbnail of 8×8": thumbnail(images, 8),
        "thumbnail of 4×4": thumbnail(images, 4),
        "noise, σ 0.3": noise(images, 0.3, seed),
        "own mean colour": mean_colour(images),
        "uniform noise": uniform_noise(images, seed),
        "another image": images.roll(1, 0),
    }
    blind = {name: blind_guess(images, images, name).best for name in ("psnr", "ssim", "lpips")}
    for name, changed in distorted.items():
        scores = {
            "psnr": psnr(changed, images),
            "ssim": ssim(changed, images),
            "lpips": lpips(changed, images),
        }
        verdicts = judge_each(**scores, **{f"blind_{score}": best for score, best in blind.items()})
        yield {
            "example": "visible",
            "reconstruction": name,
            **{
                f"by {score}": sum(verdict.criteria[score] for verdict in verdicts) / len(verdicts)
                for score in scores
            },
            "visible": sum(verdict.level == "visible" for verdict in verdicts) / len(verdicts),
            "psnr alone": float(((scores["psnr"] >= 15) & (scores["psnr"] > blind["psnr"])).double().mean()),
        }
    vectors = features(images).double()
    distances = torch.cdist(vectors, vectors).square().fill_diagonal_(torch.inf)
    yield {"example": "LPIPS of all pairs", "lowest": float(distances.min())}


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
    rows = [
        *identification_rows(images, options.seed),
        *visibility_rows(images, options.seed),
        *guess_rows(images),
    ]
    for row in rows:
        print(*(f"{key} {value:.3f}" if isinstance(value, float) else value for key, value in row.items()))
    append_rows(options.out, rows, seed=options.seed, images=len(images))


if __name__ == "__main__":
    main()
