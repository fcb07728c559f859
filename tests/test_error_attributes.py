"""Every error about a setting, data or a file names its field, so that no caller has to parse the message."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import refiner

# The other errors may be about no single field: a protocol that was aborted, a defence that failed.
ERRORS_ABOUT_A_FIELD = {"SettingError", "DataError"}
PACKAGE = Path(refiner.__file__).parent


def errors_without_field(source: str) -> Iterator[int]:
    """The lines in which an error about a field is made, or raised as a bare class, without `field`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and _name(node.exc) in ERRORS_ABOUT_A_FIELD:
            yield node.lineno
        if (
            isinstance(node, ast.Call)
            and _name(node.func) in ERRORS_ABOUT_A_FIELD
            and "field" not in {keyword.arg for keyword in node.keywords}
        ):
            yield node.lineno


def _name(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("raise DataError('a.png: no such file')", [1]),
        ("\nreturn errors.SettingError('lr = 0', value=0)", [2]),
        ("raise DataError", [1]),
        ("raise DataError('a.png: no such file', field='path', value='a.png')", []),
        ("raise file_error('a.png', 'no such file', 'an existing file')", []),
        ("raise ProtectionError('no update was made')", []),
        ("try: f()\nexcept DataError: raise", []),
    ],
)
def test_errors_without_a_field_are_detected(source: str, lines: list[int]) -> None:
    assert list(errors_without_field(source)) == lines


def test_every_setting_and_data_error_names_its_field() -> None:
    offenders = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in errors_without_field(path.read_text(encoding="utf-8"))
    ]
    assert not offenders
