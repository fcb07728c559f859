"""Every benchmark imports, prints its help, and names its command and the page that shows its results."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
FILES = sorted(FOLDER.glob("*.py"))
SCRIPTS = [path for path in FILES if "def main(" in path.read_text(encoding="utf-8")]


@pytest.fixture(autouse=True)
def _benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks import each other by name, as they do when run as scripts."""
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for path in FILES:
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_benchmark_imports_and_prints_its_help(
    path: Path, missing: Callable[[str], NoReturn], capsys: pytest.CaptureFixture[str]
) -> None:
    if "federation.flower" in path.read_text(encoding="utf-8") and find_spec("flwr") is None:
        missing("flwr")
    module = importlib.import_module(path.stem)
    assert Path(module.__file__ or "") == path
    if path in SCRIPTS:
        with pytest.raises(SystemExit) as stopped:
            module.main(["--help"])
        assert stopped.value.code == 0
        assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_docstring_names_the_command_and_an_existing_page(path: Path) -> None:
    docstring = path.read_text(encoding="utf-8").split('"""')[1]
    assert f"python benchmarks/{path.name}" in docstring
    pages = re.findall(r"docs/[\w/-]+\.md", docstring)
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []
