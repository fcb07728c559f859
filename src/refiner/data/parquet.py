"""Images in Parquet and Arrow files as Hugging Face writes them: encoded, beside a column of labels."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.data.labels import validate_labels
from refiner.data.readers.image_blocks import read_image_array, stack_in_blocks
from refiner.data.saved_dataset import open_arrow
from refiner.errors import DataError
from refiner.files import file_error

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")


def read_parquet(
    files: Sequence[Path], size: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Images uint8 [N, 3, H, W], labels [N], and the class names if the files have them.

    The column `image` or `img` has encoded images, as bytes or as {bytes, path}. A file that ends in `.arrow`
    is read as Arrow's streaming format, any other as Parquet.

    >>> read_parquet([])
    Traceback (most recent call last):
    refiner.errors.DataError: no .parquet files
    """
    if not files:
        raise DataError("no .parquet files", field="files", value=[], expected="at least one .parquet file")
    for file in files:
        if not file.is_file():
            raise file_error(file, "no such file", "an existing file")
    kind = "arrow" if _is_arrow(files[0]) else "parquet"
    try:
        # By name, so that type checking does not depend on whether it is installed.
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        import_module("pyarrow.ipc")
    except ImportError:
        raise DataError(
            f"{kind}: needs pyarrow: pip install 'refiner-fl[parquet]'",
            field="format",
            value=kind,
            expected="an installed pyarrow",
        ) from None
    blocks: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    class_names: tuple[str, ...] = ()
    try:
        for file in files:
            with open_arrow(arrow, file) if _is_arrow(file) else parquet.ParquetFile(file) as table:
                image_column, label_column = _find_columns(table, file)
                class_names = _class_names(table, label_column)
                column = table.read([label_column]).column(label_column)
                if not len(column):
                    continue
                if column.null_count or not arrow.types.is_integer(column.type):
                    raise DataError(
                        f"{file}: '{label_column}' is {column.type}, expected integers and none missing",
                        field=label_column,
                        value=str(column.type),
                        expected="integers and none missing",
                    )
                labels.append(validate_labels(column.to_numpy(), len(column), str(file)))
                blocks += _decode(dict(_encoded_images(table, image_column, file)), size)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise file_error(
            file, f"can't be read ({' '.join(str(error).split())[:120]})", "a file that can be read"
        ) from error
    if not blocks and len(files) == 1:
        raise file_error(file, "contains no rows", "at least one row")
    if not blocks:
        raise file_error(
            file.parent, f"none of {len(files)} files contains a row", "a file with at least one row"
        )
    shapes = {block.shape[1:] for block in blocks}
    if len(shapes) != 1:
        raise DataError(
            f"{files[0].parent}: images of several sizes; set size to make them equal",
            field="size",
            value=None,  # size was not given
            expected="images of one size",
        )
    return np.concatenate(blocks), np.concatenate(labels), class_names


def _is_arrow(file: Path) -> bool:
    return file.suffix.lower() == ".arrow"


def _decode(encoded: Mapping[str, bytes], size: int | None) -> Iterator[NDArray[np.uint8]]:
    return stack_in_blocks(encoded, lambda name: read_image_array(encoded[name], name, size))


def _find_columns(table: Any, file: Path) -> tuple[str, str]:
    columns = table.schema_arrow.names
    image, label = (
        next((name for name in names if name in columns), None) for names in (_IMAGE_COLUMNS, _LABEL_COLUMNS)
    )
    if image is None or label is None:
        expected = "'image' or 'img'" if image is None else "'label'"
        raise file_error(
            file,
            f"has the columns {', '.join(columns)}, expected a column {expected}",
            f"a column {expected}",
        )
    return image, label


def _class_names(table: Any, label: str) -> tuple[str, ...]:
    """The class names that Hugging Face stores in the schema, if they are there."""
    try:
        metadata = json.loads((table.schema_arrow.metadata or {})[b"huggingface"])
        names = metadata["info"]["features"][label]["names"]
        return tuple(str(name) for name in names)
    except (KeyError, ValueError, TypeError):
        return ()


def _encoded_images(table: Any, column: str, file: Path) -> Iterator[tuple[str, bytes]]:
    number = 0
    for group in table.iter_batches(batch_size=1024, columns=[column]):
        for value in group.column(0).to_pylist():
            content = value.get("bytes") if isinstance(value, dict) else value
            if not isinstance(content, bytes):
                raise DataError(
                    f"{file}, row {number}: '{column}' contains no encoded image",
                    field="path",
                    value=str(file),
                    expected="encoded images",
                )
            yield f"{file}, row {number}", content
            number += 1
