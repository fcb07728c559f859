"""Tabular data from a CSV file: rows of numbers scaled to 0..1, and a column of class labels."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from refiner.checks import unknown_name
from refiner.data.data_name import CSV
from refiner.errors import DataError
from refiner.files import file_error, short_reason

LEAST_ROWS = 8
# Labels 0, 1, 2 … below it are class numbers; a model of more classes has them as names.
_MOST_NUMBERED = 1000
# The range of a column is finite then.
_LARGEST = 1e300


@dataclass(frozen=True, eq=False)
class CsvTable:
    """A table of numbers with a class for every row.

    Attributes:
        x: The features `[N, features]`; each column is scaled to 0..1 by its smallest and largest value.
        y: The class numbers `[N]`.
        features: The names of the feature columns.
        class_names: The labels of the classes, as they are in the file.
        source: Name of the file.
    """

    x: Tensor
    y: Tensor
    features: tuple[str, ...]
    class_names: tuple[str, ...]
    source: str

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def shuffled(self, seed: int) -> "CsvTable":
        """Return the same rows in a random order: those of a file are often sorted."""
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))
        return CsvTable(self.x[order], self.y[order], self.features, self.class_names, self.source)


def load_csv_table(path: Path, target: str) -> CsvTable:
    """Return the table of a CSV file.

    Empty lines, and lines before the header that start with `#`, are skipped. All columns but the target
    contain numbers, and no cell is empty. Errors name the line and the column, never the content of a cell.

    Args:
        path: The file, in UTF-8 and with commas.
        target: The column with the class labels. Whole numbers from 0 to 999, one of them 0, are class
            numbers; any other labels are numbered in their sorted order.

    Returns:
        The table.

    Raises:
        DataError: The file can't be read, a column or cell is wrong, there are fewer than 8 rows, or the
            target has only one value or too many to be classes.

    >>> load_csv_table(Path("absent.csv"), "label")
    Traceback (most recent call last):
    refiner.errors.DataError: absent.csv: no such file
    """
    if not path.is_file():
        raise file_error(path, "no such file", "an existing file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next((line for line in reader if line and not line[0].startswith("#")), [])
            names = _check_header(path, header, target)
            column = names.index(target)
            rows, labels = [], []
            for line in filter(None, reader):
                number = reader.line_num
                if len(line) != len(names):
                    expected = f"{len(names)}, one for each column"
                    raise file_error(path, f"line {number}: {len(line)} cells, expected {expected}", expected)
                labels.append(_label(path, number, target, line[column]))
                cells = zip(names, line, strict=True)
                rows.append([_number(path, number, *cell) for cell in cells if cell[0] != target])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise file_error(path, f"not a CSV file in UTF-8 ({short_reason(error)})", "a CSV file") from error
    if len(rows) < LEAST_ROWS:
        expected = f"at least {LEAST_ROWS}"
        raise file_error(path, f"{len(rows)} rows, expected {expected}", expected)
    y, class_names = _number_labels(path, target, labels)
    table = torch.tensor(rows, dtype=torch.float64)
    low, high = table.aminmax(dim=0)
    x = ((table - low) / (high - low).clamp_min(1e-300)).clamp(0, 1).float()  # a constant column becomes 0
    features = tuple(name for name in names if name != target)
    return CsvTable(x, y, features, class_names, path.name)


def table_path(data: str | None) -> Path | None:
    """Return the file of `csv:FILE` or of a path that ends in `.csv`; None for any other name of data.

    >>> table_path("csv:rows.txt"), table_path("rows.csv"), table_path("photos/")
    (PosixPath('rows.txt'), PosixPath('rows.csv'), None)
    """
    if data is None or not (data.startswith(f"{CSV}:") or data.lower().endswith(".csv")):
        return None
    return Path(data.removeprefix(f"{CSV}:")).expanduser()


def _check_header(path: Path, header: Sequence[str], target: str) -> list[str]:
    names = [name.strip() for name in header]
    if len(names) < 2 or not all(names) or all(_is_number(name) for name in names):
        expected = "a header with the names of at least two columns, separated by commas"
        raise file_error(path, f"expected {expected}", expected)
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise file_error(path, f"the column {repeated!r} is there twice", "a different name for every column")
    if target not in names:
        raise unknown_name(target, names, "target")
    return names


def _number(path: Path, line: int, column: str, text: str) -> float:
    if _is_number(text) and abs(value := float(text)) < _LARGEST:
        return value
    problem = "the number is missing" if not text.strip() else "expected a finite number"
    raise file_error(path, f"line {line}, column {column!r}: {problem}", "a finite number")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _label(path: Path, line: int, column: str, text: str) -> str:
    if not text.strip():
        raise file_error(path, f"line {line}, column {column!r}: the label is missing", "a label")
    return text.strip()


def _number_labels(path: Path, target: str, labels: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """The class numbers, and the names of the classes."""
    distinct = sorted(set(labels))
    if not 2 <= len(distinct) <= len(labels) // 2:
        raise DataError(
            f"{path}: the column {target!r} has {len(distinct)} different values in {len(labels)} rows, "
            "expected class labels",
            field="target",
            value=target,
            expected="a column of class labels, two or more of them",
        )
    if all(_is_number(label) and float(label).is_integer() for label in distinct):
        values = {label: int(float(label)) for label in distinct}
        if min(values.values()) == 0 and max(values.values()) < _MOST_NUMBERED:
            names = tuple(map(str, range(max(values.values()) + 1)))
            return torch.tensor([values[label] for label in labels]), names
        distinct.sort(key=lambda label: values[label])
    numbers = {label: number for number, label in enumerate(distinct)}
    return torch.tensor([numbers[label] for label in labels]), tuple(distinct)
