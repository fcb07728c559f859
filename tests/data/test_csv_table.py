"""CSV tables: what is read, and that every error names line and column but no content."""

from pathlib import Path

import pytest
import torch

from refiner.data.csv_table import load_csv_table, table_path
from refiner.data.load_images import load_images
from refiner.errors import DataError

LINES = ["age,dose,group", *(f"{20 + n},{n / 4},{'ab'[n % 2]}" for n in range(8))]


def write(folder: Path, lines: list[str]) -> Path:
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_columns_are_scaled_and_labels_numbered(tmp_path: Path) -> None:
    table = load_csv_table(write(tmp_path, ["# a comment, with a comma", "", *LINES, ""]), "group")
    assert table.features == ("age", "dose") and table.class_names == ("a", "b")
    torch.testing.assert_close(table.x, (torch.arange(8) / 7)[:, None].expand(8, 2))
    assert table.y.tolist() == [0, 1] * 4 and table.source == "rows.csv"
    mixed = table.shuffled(0)
    assert torch.equal(mixed.x[:, 0].sort().values, table.x[:, 0]) and not torch.equal(mixed.x, table.x)
    assert torch.equal(mixed.y, (mixed.x[:, 0] * 7).round().long() % 2)


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (["0", "2"], ("0", "1", "2"), [0, 2]),  # class numbers, one of them not in the file
        (["1.0", "0.0"], ("0", "1"), [1, 0]),
        (["10", "9"], ("9", "10"), [1, 0]),
        (["yes", "no"], ("no", "yes"), [1, 0]),
    ],
)
def test_labels(tmp_path: Path, labels: list[str], classes: tuple[str, ...], numbers: list[int]) -> None:
    rows = [f"{n},{labels[n % 2]}" for n in range(8)]
    table = load_csv_table(write(tmp_path, ["a,label", *rows]), "label")
    assert table.class_names == classes and table.y[:2].tolist() == numbers


def test_a_constant_column_is_zero(tmp_path: Path) -> None:
    table = load_csv_table(write(tmp_path, ["a,b,y", *(f"5,{n},{n % 2}" for n in range(8))]), "y")
    assert torch.equal(table.x[:, 0], torch.zeros(8))


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (3, "secret,1,a", "rows.csv: line 4, column 'age': expected a finite number"),
        (3, "nan,1,a", "line 4, column 'age': expected a finite number"),
        (5, "1,,a", "line 6, column 'dose': the number is missing"),
        (2, "1,2, ", "line 3, column 'group': the label is missing"),
        (2, "1,2", "line 3: 2 cells, expected 3, one for each column"),
        (0, "age,age,group", "the column 'age' is there twice"),
        (0, "1,2,3", "expected a header with the names of at least two columns"),
        (0, "age;dose;group", "expected a header"),
        (0, "age,dose,grup", "target = 'group': unknown; did you mean 'grup'? Known: age, dose, grup"),
        (1, '"1,2,a', "not a CSV file in UTF-8 (unexpected end of data)"),
    ],
)
def test_errors_name_line_and_column(tmp_path: Path, line: int, text: str, message: str) -> None:
    lines = [text if n == line else old for n, old in enumerate(LINES)]
    with pytest.raises(DataError) as error:
        load_csv_table(write(tmp_path, lines), "group")
    assert message in str(error.value) and "secret" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_errors_of_whole_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.csv: 3 rows, expected at least 8"):
        load_csv_table(write(tmp_path, LINES[:4]), "group")
    with pytest.raises(DataError, match="'age' has 8 different values in 8 rows, expected class labels"):
        load_csv_table(write(tmp_path, [*LINES[:1], *(line[:-1] + "1" for line in LINES[1:])]), "age")
    file = write(tmp_path, LINES)
    file.write_bytes(b"\xff" + file.read_bytes())
    with pytest.raises(DataError, match="not a CSV file in UTF-8"):
        load_csv_table(file, "group")


def test_names_of_tables(tmp_path: Path) -> None:
    assert table_path(None) is None and table_path("sample") is None
    assert table_path("csv:a/b.txt") == Path("a/b.txt")
    with pytest.raises(DataError, match=r"a table, expected images; tables are for `refiner audit`"):
        load_images(str(write(tmp_path, LINES)))
