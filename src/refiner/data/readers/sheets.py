"""Data sets as lossless sheets and plain arrays, the layouts of `DATASETS`."""

from collections.abc import Mapping
from pathlib import Path

from refiner.data.datasets import DATASETS, load_dataset
from refiner.data.readers.raw import Raw, Reader, in_pieces


def sheets(name: str) -> Reader:
    """The reader of the files that `DATASETS[name]` lists: those splits of which all files are there.

    >>> sheets("cifar100")(Path("absent")) is None
    True
    """

    def read(path: Path) -> Mapping[str, Raw] | None:
        folder = path if path.is_dir() else path.parent
        splits = {
            split: held
            for split, held in DATASETS[name].splits.items()
            if all((folder / file).is_file() for file in (*held.files, held.labels))
        }
        if path.is_file():
            # One file stands for its split if it is all of it.
            splits = {
                split: held for split, held in splits.items() if {*held.files, held.labels} == {path.name}
            }
        return {split: _raw(name, split, folder) for split in splits} or None

    return read


def _raw(name: str, split: str, folder: Path) -> Raw:
    images, labels = load_dataset(name, split, folder)
    return Raw(labels.numpy(), lambda: in_pieces(images.numpy()))
