"""Writes the tables and figures of the documentation from the measured rows in docs/results/*.jsonl.

    python tools/result_tables.py            # rewrites every page with a marker
    python tools/result_tables.py --check    # fails if a page disagrees with its rows

A page holds two kinds of markers; what stands between a marker and its `<!-- end -->` is generated:

    <!-- table: NAME -->                              the table NAME of tools/result_tables.toml
    <!-- value: FILE {key = "value"} {PSNR:.1f} -->   one figure: the row of FILE.jsonl with these values

Cells are Python format strings over a row's fields; a cell without a row shows "–". These are errors: a row
that lacks a field of its cell, unless the column is `optional`; a filter that fits more than one row; a row
that no page shows (delete superseded rows).
"""

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CHANGELOG.md", "docs/*.md", "docs/results/*.md")
REQUIRED = ("command", "device")
MISSING = "–"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
VALUE = re.compile(r"(<!-- value: (\S+) (\{[^}]*\}) (\S.*?) -->)[^\n]*?(<!-- end -->)")

Row = dict[str, Any]
Where = Mapping[str, Any]


class Number(float):
    """A float that takes one more format: "digits" gives three of them without an exponent.

    >>> [f"{Number(value):digits}" for value in (0.10713, 15.833, 15832.9, 4.5e-08, 0.0)]
    ['0.107', '15.8', '15,833', '<0.001', '0']
    """

    def __format__(self, spec: str) -> str:
        if spec != "digits":
            return super().__format__(spec)
        if 0 < abs(self) < 1e-3:
            return "<0.001"
        return f"{float(self):,.0f}" if abs(self) >= 100 else f"{float(self):.3g}"


class ResultError(Exception):
    """A table, a filter or a row that can't be right, in one line."""


@dataclass
class Results:
    """All rows by file, and which of them a page has shown.

    >>> rows = [{"attack": "idlg", "PSNR": 79.3, "command": "…", "device": "CPU"}]
    >>> Results({"attacks": rows}).cell("attacks", {"attack": "idlg"}, "{PSNR:.0f} dB")
    '79 dB'
    """

    files: dict[str, list[Row]]
    shown: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, folder: Path) -> "Results":
        """The rows of every `.jsonl` file in `folder`."""
        files = {}
        for path in sorted(folder.glob("*.jsonl")):
            files[path.stem] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for number, row in enumerate(files[path.stem], start=1):
                missing = [key for key in REQUIRED if key not in row]
                if missing:
                    raise ResultError(f"{path.name}, line {number}: has no {' and no '.join(missing)}")
                row.update(derived(row))
        return cls(files)

    def matching(self, file: str, where: Where) -> list[Row]:
        """The rows of `file` with the values of `where`; a list of values accepts any of them."""
        if file not in self.files:
            raise ResultError(f"{file}.jsonl: there is no such file")
        return [row for row in self.files[file] if all(_fits(row, key, where[key]) for key in where)]

    def one(self, file: str, where: Where) -> Row | None:
        """The row with these values, or None.

        Raises:
            ResultError: If several rows fit.
        """
        rows = self.matching(file, where)
        if len(rows) > 1:
            raise ResultError(f"{file}.jsonl: {len(rows)} rows fit {dict(where)}, expected one")
        self.shown.update(id(row) for row in rows)
        return rows[0] if rows else None

    def cell(self, file: str, where: Where, template: str) -> str:
        """The figure of one row, formatted."""
        row = self.one(file, where)
        return MISSING if row is None else fill(template, row)

    def unseen(self) -> list[str]:
        """The rows that no page shows."""
        return [
            f"{name}.jsonl, line {number}: no page shows this row"
            for name in sorted(self.files)
            for number, row in enumerate(self.files[name], start=1)
            if id(row) not in self.shown
        ]


def derived(row: Row) -> Row:
    """Fields that follow from others: the mean of the last five accuracies, dB above a blind guess, ‖g‖, or
    that have a name without a point.

    >>> derived({"PSNR": 20.0, "own mean colour": 14.5})
    {'above_guess': 5.5}
    """
    fields: Row = {}
    if "curve" in row:
        last = [accuracy for _, accuracy in row["curve"][-5:]]
        fields["last_five"] = fsum(last) / len(last)
    if "PSNR" in row and "own mean colour" in row:
        fields["above_guess"] = row["PSNR"] - row["own mean colour"]
    if "TPR at 0.1 % FPR" in row:  # a format string takes the point for that of an attribute
        fields["lowest_tpr"] = row["TPR at 0.1 % FPR"]
    if row.get("relative distance"):
        fields["gradient_norm"] = row["distance"] / row["relative distance"]
    return fields


def fill(template: str | list[str], row: Row) -> str:
    """`template`, or the first of several, whose fields `row` has; "–" if there is none.

    >>> fill("{psnr:.1f} dB", {"psnr": 12.34}), fill("{psnr:.1f} dB", {})
    ('12.3 dB', '–')
    >>> fill(["{psnr:.1f} ± {error:.1f}", "{psnr:.0f}"], {"psnr": 12.34})
    '12'
    """
    fields = {key: _number(value) for key, value in row.items() if value is not None}
    for one in [template] if isinstance(template, str) else template:
        try:
            return one.format_map(fields)
        except KeyError:
            continue
    return MISSING


def render(name: str, spec: Mapping[str, Any], results: Results, page: Path, folder: Path) -> str:
    """A markdown table, and below it a line that names its files, devices and commits.

    A cell shows the one row that fits the filters of the table, of its line and of its column. A column of
    another `file` has a filter of its own, whose texts may quote fields of the line.

    Raises:
        ResultError: If no row fits, or if a row lacks a field of a cell in a column that is not `optional`.
    """
    columns = spec["columns"]
    lines = [[column["head"] for column in columns], ["---"] * len(columns)]
    sources: dict[str, list[Row]] = {}
    for entry in _entries(spec, results):
        cells = []
        for column in columns:
            file = column.get("file", spec["file"])
            cell = column.get("cell", spec.get("cell", ""))
            if fill(cell, entry) != MISSING:
                cells.append(fill(cell, entry))  # a label, which needs no row
                continue
            where = {key: _quoted(value, entry) for key, value in column.get("where", {}).items()}
            if file == spec["file"]:
                where = {**spec.get("where", {}), **entry["where"], **where}
            row = results.one(file, where)
            if row is not None:
                sources.setdefault(file, []).append(row)
            text = fill(cell, {**(row or {}), **entry})
            if text == MISSING and row is not None and not column.get("optional", False):
                raise ResultError(
                    f"table {name}, column {column['head']!r}: the row {where} lacks a field of {cell!r}"
                )
            cells.append(text)
        lines.append(cells)
    if not sources:
        raise ResultError(f"table {name}: no row fits")
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"{body}\n\n{_origin(sources, page, folder)}\n"


def _entries(spec: Mapping[str, Any], results: Results) -> Iterator[Row]:
    """The lines of a table: its `rows`, or one for each row of the file, told apart by the fields `by`."""
    if "rows" in spec:
        yield from spec["rows"]
        return
    rows = results.matching(spec["file"], spec.get("where", {}))
    if "order" in spec:
        first, place = spec["by"][0], {value: number for number, value in enumerate(spec["order"])}
        rows = sorted((row for row in rows if row[first] in place), key=lambda row: place[row[first]])
    for row in rows:
        fields = {key: row[key] for key in spec["by"]}
        yield {**fields, "where": fields}


def _number(value: Any) -> Any:
    return Number(value) if isinstance(value, float) else value


def _quoted(value: Any, entry: Row) -> Any:
    """A value of a filter: "{field}" alone is the entry's field, of any type; other strings are formatted."""
    if not isinstance(value, str):
        return value
    field = re.fullmatch(r"\{(\w+)\}", value)
    return entry[field[1]] if field else value.format_map(entry)


def _origin(sources: Mapping[str, list[Row]], page: Path, folder: Path) -> str:
    links = []
    for name, rows in sources.items():
        path = Path(os.path.relpath(folder / f"{name}.jsonl", page.parent)).as_posix()
        devices = " and ".join(dict.fromkeys(row["device"] for row in rows))
        commits = ", ".join(dict.fromkeys(row.get("commit", "commit not recorded") for row in rows))
        links.append(f"[{name}.jsonl]({path}) ({devices}; {commits})")
    return f"*Rows: {', '.join(links)}.*"


def _fits(row: Row, key: str, value: Any) -> bool:
    return row.get(key) in value if isinstance(value, list) else bool(row.get(key) == value)


def rewrite(text: str, tables: Mapping[str, Any], results: Results, page: Path, folder: Path) -> str:
    """The text of a page with all that its markers ask for."""

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ResultError(f"{page.name}: no table is called {match[2]}")
        return match[1] + render(match[2], tables[match[2]], results, page, folder) + match[3]

    def value(match: re.Match[str]) -> str:
        if not match.string[: match.start()].rpartition("\n")[2].strip():
            raise ResultError(f"{page.name}: {match[1]} starts a line, where Markdown takes it for a block")
        try:
            where = tomllib.loads(f"where = {match[3]}")["where"]
        except tomllib.TOMLDecodeError as error:
            raise ResultError(f"{page.name}: {match[3]} is no filter ({error})") from error
        shown = results.cell(match[2], where, match[4])
        if shown == MISSING:
            raise ResultError(f"{page.name}: no row of {match[2]}.jsonl for {match[3]} {match[4]}")
        return match[1] + shown + match[5]

    return VALUE.sub(value, TABLE.sub(table, text))


def run(root: Path, check: bool) -> list[str]:
    """Rewrite the pages under `root`; with `check` change nothing. Returns what is wrong."""
    folder = root / "docs" / "results"
    tables = tomllib.loads((root / "tools" / "result_tables.toml").read_text(encoding="utf-8"))
    results, problems = Results.read(folder), []
    for page in [path for pattern in PAGES for path in sorted(root.glob(pattern))]:
        text = page.read_text(encoding="utf-8")
        renewed = rewrite(text, tables, results, page, folder)
        if renewed != text and check:
            problems.append(f"{page.relative_to(root)}: out of date; run python tools/result_tables.py")
        elif renewed != text:
            page.write_text(renewed, encoding="utf-8")
    return problems + results.unseen()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page is out of date")
    try:
        problems = run(ROOT, parser.parse_args().check)
    except ResultError as error:
        sys.exit(f"result_tables: {error}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
