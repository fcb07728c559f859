"""Tiny-ImageNet as its authors hand it out: JPEGs in class folders, and a list of labels for validation."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refiner.data.readers.archive import Files, open_files
from refiner.data.readers.pixels import in_blocks, pixels_of
from refiner.data.readers.raw import Raw
from refiner.errors import DataError

_WANTED = re.compile(
    r"(wnids\.txt|val/val_annotations\.txt|(train|val)/(.+/)?[^/]+\.(jpe?g))$", re.IGNORECASE
)
_PLACE = re.compile(r"(?:^|/)(train|val)/(?:(n\d{8})/)?(?:images/)?([^/]+\.jpe?g)$", re.IGNORECASE)


def read_tiny_imagenet(path: Path) -> Mapping[str, Raw] | None:
    """`train` and `val` of `tiny-imagenet-200`, zipped or unpacked; classes are numbered as in `wnids.txt`.

    >>> read_tiny_imagenet(Path("absent")) is None
    True
    """
    if not path.is_dir() and not (path.is_file() and path.suffix.lower() == ".zip"):
        return None
    if path.is_dir() and not (path / "wnids.txt").is_file():
        inner = path / "tiny-imagenet-200"
        if not (inner / "wnids.txt").is_file():
            return None
        path = inner
    files = open_files(path, lambda name: _WANTED.search(name) is not None)
    listed = [name for name in files.names if name.rsplit("/", 1)[-1] == "wnids.txt"]
    if not listed:
        raise DataError(f"{path}: wnids.txt missing")
    classes = {wnid: number for number, wnid in enumerate(_text(files, listed[0]).split())}
    annotated = _annotated(files)
    found: dict[str, list[tuple[int, int, str]]] = {"train": [], "val": []}
    for name in files.names:
        if (place := _PLACE.search(name)) is None:
            continue
        split, wnid, file = place[1].lower(), place[2], place[3]
        wnid = wnid or annotated.get(file)
        if wnid not in classes:
            raise DataError(f"{files.label(name)}: of class {wnid}, expected one of wnids.txt")
        # The training set class by class, the validation set by number.
        found[split].append((classes[wnid] if split == "train" else 0, _number(file), name))
    return {
        split: _raw(files, sorted(held), classes, annotated) for split, held in found.items() if held
    } or None


def _raw(
    files: Files, places: list[tuple[int, int, str]], classes: Mapping[str, int], annotated: Mapping[str, str]
) -> Raw:
    names = [name for _, _, name in places]
    labels = []
    for name in names:
        place = _PLACE.search(name)
        assert place is not None
        labels.append(classes[place[2] or annotated[place[3]]])
    return Raw(
        np.array(labels, dtype=np.int64),
        lambda: in_blocks(names, lambda name: pixels_of(files.read(name), files.label(name))),
    )


def _annotated(files: Files) -> dict[str, str]:
    """The class of each validation image, by its file name."""
    listed = [name for name in files.names if name.endswith("val_annotations.txt")]
    rows = (line.split("\t") for name in listed[:1] for line in _text(files, name).splitlines())
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def _text(files: Files, name: str) -> str:
    return files.read(name).decode("utf-8", "replace")


def _number(file: str) -> int:
    digits = re.findall(r"\d+", file)
    return int(digits[-1]) if digits else 0
