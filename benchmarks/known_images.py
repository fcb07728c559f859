"""Which of 1,000 known images was it? A likelihood match from x + s·n, with the covariance of the noise.

    python benchmarks/known_images.py --data CIFAR10 --out FOLDER [--victims 1000] [--draws 5]
        [--defenses refiner …] [--tiny-imagenet [--size 64]]

Images are CIFAR-10 training images from 40,000 on, or the first of Tiny-ImageNet's validation set at 64×64
pixels or shrunk, each under noise from its own secret. A server that makes up models reads these noisy
images, and so does one that follows the protocol with some models. Feeds docs/results/known-images.jsonl,
which docs/results/learned.md shows.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import adaptive_avg_pool2d

from pixels import pixels
from refiner.data import load_data
from refiner.defenses import Refiner, make_defense
from refiner.shaped_noise import NaturalNoise, identify_under_noise
from rows import append_rows

DEFENSES = (
    "refiner",
    "refiner:white=0",
    "refiner:white=0.3",
    "refiner:white=1",
    "refiner:alpha=2",
    "refiner:alpha=4",
    "refiner:alpha=6",
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--victims", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=5, help="secrets, each with other noise")
    parser.add_argument("--defenses", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--tiny-imagenet", action="store_true", help="other images, with more pixels")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side of these")
    options = parser.parse_args(argv)
    name, split, first = (
        ("tiny-imagenet", "val", 0) if options.tiny_imagenet else ("cifar10", "train", 40_000)
    )
    images = load_data(name, split, root=options.data).images[first : first + options.victims]
    x = pixels(images, torch.device("cpu"))
    if options.tiny_imagenet:
        x = adaptive_avg_pool2d(x, options.size)
    shape = (x.shape[1], x.shape[2], x.shape[3])
    for text in options.defenses:
        defense = make_defense(text)
        assert isinstance(defense, Refiner)
        noise = NaturalNoise.bundled().for_shape(shape).with_white(defense.white)
        shares = [
            identify_under_noise(defense.with_seeded_key(seed).noisy(x), x, noise).top1
            for seed in range(options.draws)
        ]
        row: dict[str, object] = {
            "data": name,
            "size": shape[-1],
            "defense": text,
            "victims": len(x),
            "draws": options.draws,
            "top-1": statistics.mean(shares),
            "least": min(shares),
            "most": max(shares),
        }
        print(json.dumps(row), flush=True)
        append_rows(options.out / "known-images.jsonl", [row])


if __name__ == "__main__":
    main()
