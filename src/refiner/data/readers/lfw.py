"""Labeled Faces in the Wild as its authors distribute it: one folder for each person."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refiner.data.readers.archive import is_archive, open_files
from refiner.data.readers.image_blocks import read_image_array, stack_in_blocks
from refiner.data.readers.source_split import SourceSplit
from refiner.files import file_error

_SIDE = 32
_CENTRE = 128  # of 250 pixels: the face and little background
_PERSON_FILE = re.compile(r"(?:^|/)([^/]+)/(\1_\d{4}\.jpg)$")


def number_people(files: list[str]) -> tuple[list[str], list[int]]:
    """The people named by files such as `Al_Gore_0001.jpg`, sorted, and the number of each file's person.

    >>> number_people(["Bo_Li_0001.jpg", "Al_Gore_0001.jpg", "Al_Gore_0002.jpg"])
    (['Al_Gore', 'Bo_Li'], [1, 0, 0])
    """
    people = [file.rsplit("_", 1)[0] for file in files]
    names = sorted(set(people))
    numbers = {name: number for number, name in enumerate(names)}
    return names, [numbers[person] for person in people]


def read_lfw(path: Path) -> Mapping[str, SourceSplit] | None:
    """All images by file name, the middle 128×128 of each resized to 32×32; a label is a person's number.

    >>> read_lfw(Path("absent")) is None
    True
    """
    if not path.is_dir() and not (path.is_file() and is_archive(path)):
        return None
    files = open_files(path, lambda name: _PERSON_FILE.search(name) is not None)
    if not files.names:
        return None
    paths = {name.rsplit("/", 1)[-1]: name for name in files.names}
    if len(paths) < len(files.names):
        raise file_error(
            path, "contains some images twice, expected one folder of people", "one folder of people"
        )
    order = sorted(paths)
    return {
        "all": SourceSplit(
            np.array(number_people(order)[1], dtype=np.int64),
            lambda: stack_in_blocks(
                order,
                lambda name: read_image_array(
                    files.read(paths[name]), files.title(paths[name]), _SIDE, _CENTRE
                ),
            ),
        )
    }
