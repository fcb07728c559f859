"""Which of 1,000 known images was it? A likelihood match from x + s·n, with the covariance of the noise.

    python benchmarks/known_images.py --data CIFAR10 --out FOLDER [--victims 1000] [--draws 5]
        [--defenses refiner …]

Images are CIFAR-10 training images from 40,000 on, each under noise from its own secret. A server that makes
up models reads these noisy images, and so does one that follows the protocol with some models. Feeds
docs/results/known-images.jsonl, which docs/results/learned.md shows.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from pixels import pixels
from refiner.data import load_data
from refiner.defenses import Refiner, make_defense
from refiner.shaped_noise import NaturalNoise, identify_under_noise
from rows import append_rows

FIRST_VICTIM = 40_000
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
    options = parser.parse_args(argv)
    data = load_data("cifar10", "train", root=options.data)
    x = pixels(data.images[FIRST_VICTIM : FIRST_VICTIM + options.victims], torch.device("cpu"))
    for name in options.defenses:
        defense = make_defense(name)
        assert isinstance(defense, Refiner)
        noise = NaturalNoise.bundled().with_white(defense.white)
        shares = [
            identify_under_noise(defense.with_seeded_key(seed).noisy(x), x, noise).top1
            for seed in range(options.draws)
        ]
        row: dict[str, object] = {
            "defense": name,
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
