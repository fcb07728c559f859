"""Images in Parquet files as Hugging Face writes them: encoded, beside a column of labels."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.data.labels import checked_labels
from refiner.data.readers.pixels import in_blocks, pixels_of
from refiner.errors import DataError

_IMAGES = ("image", "img")
_LABELS = ("label", "labels", "fine_label")


def read_parquet(
    files: Sequence[Path], size: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Images uint8 [N, 3, H, W], labels [N] and the names of the classes, if the file tells them.

    The column `image` or `img` holds encoded images, as bytes or as {bytes, path}.

    >>> read_parquet([])
    Traceback (most recent call last):
    refiner.errors.DataError: no .parquet files
    """
    if not files:
        raise DataError("no .parquet files")
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file")
    try:
        # By name, so that the types don't depend on whether it is installed.
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise DataError("parquet: needs pyarrow: pip install 'refiner[parquet]'") from None
    blocks: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    names: tuple[str, ...] = ()
    try:
        for file in files:
            with parquet.ParquetFile(file) as table:
                image, label = _columns(table, file)
                names = _class_names(table, label)
                rows = table.metadata.num_rows
                if not rows:
                    continue
                found = table.read([label]).column(label)
                if found.null_count or not arrow.types.is_integer(found.type):
                    raise DataError(f"{file}: '{label}' is {found.type}, expected integers and none missing")
                labels.append(checked_labels(found.to_numpy(), rows, str(file)))
                blocks += _images(dict(_rows(table, image, file)), size)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: can't be read ({' '.join(str(error).split())[:120]})") from error
    if not blocks and len(files) == 1:
        raise DataError(f"{file}: holds no rows")
    if not blocks:
        raise DataError(f"{file.parent}: none of {len(files)} files holds a row")
    shapes = {block.shape[1:] for block in blocks}
    if len(shapes) != 1:
        raise DataError(f"{files[0].parent}: images of several sizes; set size to make them equal")
    return np.concatenate(blocks), np.concatenate(labels), names


def _images(rows: Mapping[str, bytes], size: int | None) -> Iterator[NDArray[np.uint8]]:
    return in_blocks(rows, lambda name: pixels_of(rows[name], name, size))


def _columns(table: Any, file: Path) -> tuple[str, str]:
    held = table.schema_arrow.names
    found = [next((name for name in known if name in held), None) for known in (_IMAGES, _LABELS)]
    if found[0] is None or found[1] is None:
        wanted = "'image' or 'img'" if found[0] is None else "'label'"
        raise DataError(f"{file}: holds {', '.join(held)}, expected a column {wanted}")
    return found[0], found[1]


def _class_names(table: Any, label: str) -> tuple[str, ...]:
    """Hugging Face leaves the names of the classes in the schema."""
    try:
        told = json.loads((table.schema_arrow.metadata or {})[b"huggingface"])
        names = told["info"]["features"][label]["names"]
        return tuple(str(name) for name in names)
    except (KeyError, ValueError, TypeError):
        return ()


def _rows(table: Any, column: str, file: Path) -> Iterator[tuple[str, bytes]]:
    number = 0
    for group in table.iter_batches(batch_size=1024, columns=[column]):
        for value in group.column(0).to_pylist():
            content = value.get("bytes") if isinstance(value, dict) else value
            if not isinstance(content, bytes):
                raise DataError(f"{file}, row {number}: '{column}' holds no bytes of an image")
            yield f"{file}, row {number}", content
            number += 1
