"""The documentation's tables are those of the measured rows in docs/results."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the source archive has no docs")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("result_tables", ROOT / "tools" / "result_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages, rows and definitions in a folder of their own."""
    for name in ("README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "result_tables.toml", tmp_path / "tools")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def change_row(root: Path, file: str, where: dict[str, object], **changes: object) -> None:
    path = root / "docs" / "results" / f"{file}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    row.update(changes)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_pages_agree_with_the_committed_rows(tool: ModuleType) -> None:
    assert tool.run(ROOT, check=True) == []


def test_rewriting_an_up_to_date_copy_changes_nothing(tool: ModuleType, copy: Path) -> None:
    before = {path: path.read_text() for path in copy.rglob("*.md")}
    assert tool.run(copy, check=False) == []
    assert {path: path.read_text() for path in copy.rglob("*.md")} == before


@pytest.mark.processes
def test_a_changed_row_fails_the_check_and_changes_tables_and_inline_values(
    tool: ModuleType, copy: Path
) -> None:
    change_row(copy, "cost", {"model": "vit"}, refiner_ms=7654.4)
    page = copy / "docs" / "results" / "cost.md"
    assert "7654" not in page.read_text()
    assert tool.run(copy, check=True) == [
        "docs/results/cost.md: out of date; run python tools/result_tables.py"
    ]
    assert "7654" not in page.read_text()
    assert tool.run(copy, check=False) == []
    text = page.read_text()
    assert "| 7654.4 |" in text and "-->7654<!-- end -->" in text
    assert tool.run(copy, check=True) == []


def test_a_row_that_no_page_shows_is_reported(tool: ModuleType, copy: Path) -> None:
    path = copy / "docs" / "results" / "cost.jsonl"
    count = len(path.read_text().splitlines())
    with path.open("a") as file:
        print(json.dumps({"model": "vgg", "command": "none", "device": "CPU"}), file=file)
    assert tool.run(copy, check=True) == [f"cost.jsonl, line {count + 1}: no page shows this row"]


def test_a_file_that_no_page_shows_is_reported(tool: ModuleType, copy: Path) -> None:
    path = copy / "docs" / "results" / "unused.jsonl"
    path.write_text(json.dumps({"command": "none", "device": "CPU"}) + "\n")
    assert tool.run(copy, check=True) == ["unused.jsonl, line 1: no page shows this row"]


def test_a_row_without_the_field_of_its_cell_is_an_error(tool: ModuleType, copy: Path) -> None:
    change_row(copy, "cost", {"model": "vit"}, peak_ratio=None)
    with pytest.raises(tool.ResultError, match=r"table cost, column 'memory / plain': .* lacks a field"):
        tool.run(copy, check=True)


def test_a_row_may_lack_the_field_of_an_optional_column(tool: ModuleType, copy: Path) -> None:
    change_row(copy, "cost", {"model": "vit"}, paper_a10_ms=None)
    assert tool.run(copy, check=False) == []
    line = next(
        line
        for line in (copy / "docs/results/cost.md").read_text().splitlines()
        if line.startswith("| ViT |")
    )
    assert line.endswith("| – |")


def test_a_table_says_when_the_commit_of_a_row_is_not_recorded(tool: ModuleType, tmp_path: Path) -> None:
    rows = [{"model": "vit", "command": "none", "device": "CPU"}]
    spec = {"file": "cost", "by": ["model"], "columns": [{"head": "device", "cell": "{device}"}]}
    table = tool.render("cost", spec, tool.Results({"cost": rows}), tmp_path / "page.md", tmp_path)
    assert table.endswith("*Rows: [cost.jsonl](cost.jsonl) (CPU; commit not recorded).*\n")


def test_two_rows_for_one_cell_are_an_error(tool: ModuleType, copy: Path) -> None:
    path = copy / "docs" / "results" / "cost.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    with pytest.raises(tool.ResultError, match="2 rows fit"):
        tool.run(copy, check=True)


def test_a_row_without_a_command_is_an_error(tool: ModuleType, copy: Path) -> None:
    path = copy / "docs" / "results" / "cost.jsonl"
    path.write_text(json.dumps({"device": "CPU"}) + "\n")
    with pytest.raises(tool.ResultError, match=r"cost\.jsonl, line 1: has no command"):
        tool.run(copy, check=True)


def test_a_value_without_a_row_is_an_error(tool: ModuleType, copy: Path) -> None:
    page = copy / "docs" / "results" / "cost.md"
    page.write_text(
        page.read_text() + 'ViT: <!-- value: cost {model = "vgg"} {refiner_ms:.1f} -->1<!-- end -->\n'
    )
    with pytest.raises(tool.ResultError, match=r"no row of cost\.jsonl"):
        tool.run(copy, check=True)


def test_a_value_at_the_start_of_a_line_is_an_error(tool: ModuleType, copy: Path) -> None:
    page = copy / "README.md"
    page.write_text(page.read_text().replace(" <!-- value:", "\n<!-- value:", 1))
    with pytest.raises(tool.ResultError, match=r"README.md: <!-- value: .* starts a line"):
        tool.run(copy, check=True)
