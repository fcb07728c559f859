"""Top-1 by chance: how often noise or other images are called a batch's own.

    python benchmarks/batch_chance.py --data CIFAR10 --out FOLDER [--batches 1 4 8 16 32 64 128]

The reconstructions of a batch come in no order and are given to its images in the one that fits best. In a
large batch something always fits: this puts noise, or other images, in the place of the reconstructions of
512 victims and finds originals among these, as learned_attack.py and many_uploads.py do. Feeds
docs/results/batch-chance.jsonl, which docs/results/batches.md shows.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from pixels import pixels
from refiner.data import load_data
from refiner.metrics import assign, identify
from rows import append_rows

FIRST_VICTIM, VICTIMS = 40_000, 512


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    images = load_data("cifar10", "train", root=options.data).images
    victims = pixels(images[FIRST_VICTIM : FIRST_VICTIM + VICTIMS], "cpu")
    generator = torch.Generator().manual_seed(options.seed)
    for batch in options.batches:
        of_clients = victims.view(-1, batch, *victims.shape[1:])
        found: dict[str, list[float]] = {"noise": [], "other images": []}
        for draw in range(options.draws):
            noise = (0.5 + 0.25 * torch.randn(victims.shape, generator=generator)).clamp(0, 1)
            others = pixels(images[draw * VICTIMS : (draw + 1) * VICTIMS], "cpu")
            for name, unrelated in (("noise", noise), ("other images", others)):
                ordered = assign(unrelated.view_as(of_clients), of_clients).flatten(0, 1)
                found[name].append(identify(ordered, victims).top1)
        row: dict[str, object] = {"batch": batch, "victims": VICTIMS, "draws": options.draws}
        row |= {name: sum(shares) / len(shares) for name, shares in found.items()} | {"seed": options.seed}
        print(row, flush=True)
        append_rows(options.out / "batch-chance.jsonl", [row])


if __name__ == "__main__":
    main()
