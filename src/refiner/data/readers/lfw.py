"""Labeled Faces in the Wild as its authors hand it out: a folder a person."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refiner.data.readers.archive import is_archive, open_files
from refiner.data.readers.pixels import in_blocks, pixels_of
from refiner.data.readers.raw import Raw
from refiner.errors import DataError

SIDE = 32
_CENTRE = 128  # of 250: the face, and little else
_PLACE = re.compile(r"(?:^|/)([^/]+)/(\1_\d{4}\.jpg)$")


def people(files: list[str]) -> tuple[list[str], list[int]]:
    """The people whom `Some_One_0001.jpg` and so on name, sorted, and the number of each file's own.

    >>> people(["Bo_Li_0001.jpg", "Al_Gore_0001.jpg", "Al_Gore_0002.jpg"])
    (['Al_Gore', 'Bo_Li'], [1, 0, 0])
    """
    owners = [file.rsplit("_", 1)[0] for file in files]
    names = sorted(set(owners))
    numbers = {name: number for number, name in enumerate(names)}
    return names, [numbers[owner] for owner in owners]


def read_lfw(path: Path) -> Mapping[str, Raw] | None:
    """All images by file name, the middle 128×128 of each at 32×32; a label is the number of a person.

    >>> read_lfw(Path("absent")) is None
    True
    """
    if not path.is_dir() and not (path.is_file() and is_archive(path)):
        return None
    files = open_files(path, lambda name: _PLACE.search(name) is not None)
    if not files.names:
        return None
    places = {name.rsplit("/", 1)[-1]: name for name in files.names}
    if len(places) < len(files.names):
        raise DataError(f"{path}: some images are there twice, expected one folder of people")
    order = sorted(places)
    return {
        "all": Raw(
            np.array(people(order)[1], dtype=np.int64),
            lambda: in_blocks(
                order,
                lambda name: pixels_of(files.read(places[name]), files.label(places[name]), SIDE, _CENTRE),
            ),
        )
    }
