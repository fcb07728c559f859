"""Tiny-ImageNet as its authors distribute it: JPEGs in class folders, and a list of validation labels."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refiner.data.readers.archive import Files, open_files
from refiner.data.readers.image_blocks import read_image_array, stack_in_blocks
from refiner.data.readers.source_split import SourceSplit
from refiner.files import file_error

_WANTED_FILE = re.compile(
    r"(wnids\.txt|val/val_annotations\.txt|(train|val)/(.+/)?[^/]+\.(jpe?g))$", re.IGNORECASE
)
_IMAGE_FILE = re.compile(r"(?:^|/)(train|val)/(?:(n\d{8})/)?(?:images/)?([^/]+\.jpe?g)$", re.IGNORECASE)


def read_tiny_imagenet(path: Path) -> Mapping[str, SourceSplit] | None:
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
    files = open_files(path, lambda name: _WANTED_FILE.search(name) is not None)
    class_lists = [name for name in files.names if name.rsplit("/", 1)[-1] == "wnids.txt"]
    if not class_lists:
        raise file_error(path, "wnids.txt missing", "a folder or archive with wnids.txt")
    classes = {wnid: number for number, wnid in enumerate(_text(files, class_lists[0]).split())}
    annotations = _validation_classes(files)
    images: dict[str, list[tuple[int, int, str, int]]] = {"train": [], "val": []}
    for name in files.names:
        if (match := _IMAGE_FILE.search(name)) is None:
            continue
        split, file = match[1].lower(), match[3]
        wnid = match[2] or annotations.get(file)
        if wnid not in classes:
            raise file_error(
                files.title(name), f"of class {wnid}, expected one of wnids.txt", "a class of wnids.txt"
            )
        label = classes[wnid]
        # The training split is ordered by class, the validation split by image number.
        images[split].append((label if split == "train" else 0, _image_number(file), name, label))
    return {split: _source_split(files, sorted(rows)) for split, rows in images.items() if rows} or None


def _source_split(files: Files, rows: list[tuple[int, int, str, int]]) -> SourceSplit:
    names = [name for _, _, name, _ in rows]
    return SourceSplit(
        np.array([label for *_, label in rows], dtype=np.int64),
        lambda: stack_in_blocks(names, lambda name: read_image_array(files.read(name), files.title(name))),
    )


def _validation_classes(files: Files) -> dict[str, str]:
    """The class of each validation image, by its file name."""
    lists = [name for name in files.names if name.endswith("val_annotations.txt")]
    rows = (line.split("\t") for name in lists[:1] for line in _text(files, name).splitlines())
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def _text(files: Files, name: str) -> str:
    return files.read(name).decode("utf-8", "replace")


def _image_number(file: str) -> int:
    digits = re.findall(r"\d+", file)
    return int(digits[-1]) if digits else 0
