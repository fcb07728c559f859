"""The documentation is correct: its Python runs, its commands and links exist, it installs this project."""

import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

from refiner.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
DISTRIBUTION = "refiner-fl"


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page in this language, each with the number of its first line."""
    text = page.read_text()
    matches = (match for match in FENCE.finditer(text) if match[1] == language)
    return [(text[: match.start()].count("\n") + 2, textwrap.dedent(match[2])) for match in matches]


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


@pytest.mark.documentation
@pytest.mark.parametrize("page", named([page for page in PAGES if blocks(page, "python")]))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "documentation"}
    for line, code in blocks(page, "python"):
        # Padded, so that a traceback shows the line of the page.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
    assert namespace.keys() > {"__name__", "__builtins__"}, "the page's code defines nothing"


def commands(page: Path) -> Iterator[list[str]]:
    """The commands of a page's shell blocks, without comments, prompts and continuation lines."""
    for language in ("bash", "sh", "console", ""):
        for _, code in blocks(page, language):
            for line in code.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words:
                    yield words


@pytest.mark.parametrize("page", named([page for page in PAGES if list(commands(page))]))
def test_shell_commands_parse(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page):
        if words[0] == "refiner":
            parse(words[1:])
        elif words[0] == "make":
            assert set(words[1:]) <= targets, words
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), words


def parse(words: list[str]) -> None:
    """Parse a `refiner` command line as the program does, without running it."""
    assert "--install-completion" not in words, "parsing it would change the files of this user"
    command: click.Command = typer.main.get_command(app)
    context, name = None, "refiner"
    try:
        while isinstance(command, click.Group):
            context = command.make_context(name, list(words), parent=context)
            name, subcommand, words = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            assert subcommand is not None and name is not None
            command = subcommand
        command.make_context(name, list(words), parent=context)
    except click.exceptions.Exit:  # --help and --version end it
        pass
    except click.UsageError as error:
        pytest.fail(f"refiner {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", named([*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]))
def test_relative_links_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def texts() -> list[Path]:
    """Every text file of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:  # not a checkout
        return [path for path in ROOT.rglob("*") if path.suffix in (".py", ".md", ".toml")]
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    kinds = (".py", ".md", ".toml", ".yml", ".js", "")
    return [path for path in paths if path.is_file() and path.suffix in kinds]


INSTALL = re.compile(r"""pip\d? install\s+([^\n`)]*)""")
REQUIREMENT = re.compile(r"""["']refiner(?:\[[\w,-]+\])?(?:[<>=~!][^"']*)?["']\s*[,\]]""")


def installed_by(line: str) -> list[str]:
    """What the arguments of `pip install` name, less options and their values."""
    names = []
    words = iter(re.split(r"\s+", re.sub(r"[\"']", " ", line.partition("#")[0]).strip()))
    for word in words:
        if word in ("-r", "-c", "--requirement", "--constraint", "--target"):
            next(words, None)
        elif word and not word.startswith("-"):
            names.append(word)
    return names


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("'refiner-fl[flower]'", ["refiner-fl[flower]"]),
        ("-c requirements.lock --quiet dist/a.whl", ["dist/a.whl"]),
        ("refiner", ["refiner"]),
    ],
)
def test_install_lines_are_understood(line: str, names: list[str]) -> None:
    assert installed_by(line) == names


def test_no_text_tells_anybody_to_install_another_distribution() -> None:
    lines = []
    for path in texts():
        if path == Path(__file__):
            continue
        text = path.read_text(errors="ignore")
        for match in INSTALL.finditer(text):
            for name in installed_by(match[1]):
                if re.match(r"refiner(?!-fl\b)", name):
                    lines.append(f"{path.relative_to(ROOT)}: pip install {name}")
        if path.name == "pyproject.toml" and path.parent != ROOT:
            lines += [f"{path.relative_to(ROOT)}: {match[0]}" for match in REQUIREMENT.finditer(text)]
    assert not lines


def test_the_project_has_that_distribution_name() -> None:
    assert re.search(rf'^name = "{DISTRIBUTION}"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_the_readme_is_short() -> None:
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    assert len(text.split()) <= 700


def test_the_structure_table_names_every_package_and_module() -> None:
    source = ROOT / "src" / "refiner"
    packages = {f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in source.glob("*.py") if not path.name.startswith("_")}
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`([^`]+)`", row)} == packages | modules


def test_texts_use_the_words_of_the_field() -> None:
    banned = re.compile(r"\b(slopes?|hangs? on|pictures?|what leaves)\b", re.IGNORECASE)
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        if path not in (Path(__file__), ROOT / "CHANGELOG.md") and path.parent != ROOT / ".ci"
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), start=1)
        if banned.search(line)
    ]
    assert not lines
