"""Tests of the page: escaped text, one self-contained file."""

import ast
import base64
import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refiner.report
from refiner.errors import DataError, SettingError
from refiner.report import (
    Card,
    CardGroup,
    Cell,
    Comparison,
    Distribution,
    Gallery,
    ImageRow,
    InlineImage,
    Page,
    ReferenceLine,
    SettingsTable,
    Strip,
    Table,
    render_page,
    write_page,
)

Read = Callable[[Page], Any]
GREY = np.full((4, 6, 3), 128, np.uint8)
EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&amp;</style></title></details>"
TEXT = st.text(max_size=30)


def page_of(word: str) -> Page:
    """A page with `word` in every text field."""
    cards = [
        Card(word, GREY, GREY, GREY, [(word, word)], "visible"),
        Card(word, GREY, GREY, verdict="neither"),
    ]
    strips = [Strip(word, word, [1.0, 2.0]), Strip(word, word + "b", [3.0])]
    return Page(
        word,
        "s" + word,
        [(word, "v" + word)],
        [
            Comparison(word, "n" + word, [ImageRow(word, [InlineImage(GREY, "a" + word, "c" + word)])]),
            Table(word, [word, "b"], [[word, Cell("t" + word, "visible")], [word, "2"]], "n" + word),
            Gallery(word, [CardGroup(word, word + str(n), cards, "n" + word) for n in range(4)], "n" + word),
            Distribution(word, word, strips, [ReferenceLine(word, 1.5)], "n" + word, "u" + word),
            SettingsTable({word: word, word + "b": {word: [word]}}, word, "n" + word),
        ],
        "n" + word,
        "identifiable",
        datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    )


@given(TEXT)
def test_text_is_unchanged_and_adds_no_element(read: Read, word: str) -> None:
    got, plain = read(page_of(word)), read(page_of("w"))
    assert [tag for tag, _ in got.tags] == [tag for tag, _ in plain.tags]
    shown = _shown(word)
    assert got.texts["h1"] == [shown]
    assert f"s{shown}" in got.texts["p"][1]
    assert got.texts["td"][0] == f"t{shown} visible"
    assert got.texts["h4"] == [shown] * 8
    images = [attributes["alt"] for tag, attributes in got.tags if tag == "img"]
    assert images[0] == f"a{shown}"
    assert images[1:4] == [f"{shown}, {label}" for label in ("original", "robust data", "reconstruction")]


def _shown(text: str) -> str:
    """`text` with replacement characters for what HTML cannot hold."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join("\ufffd" if c not in "\t\n" and (c < " " or "\x7f" <= c <= "\x9f") else c for c in whole)


def test_script_injection_stays_text(read: Read) -> None:
    got = read(page_of(EVIL))
    tags = [tag for tag, _ in got.tags]
    assert tags == [tag for tag, _ in read(page_of("w")).tags]
    assert tags.count("script") == 1
    assert EVIL not in got.texts["script"][0]
    assert all(not name.startswith("on") for _, attributes in got.tags for name in attributes)
    assert got.texts["title"][0] == EVIL


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    assert "a?" in write_page(tmp_path / "a.html", Page("a\ud800", "")).read_text(encoding="utf-8")


def test_page_has_no_external_references() -> None:
    html = render_page(page_of("w"))
    assert not re.search(r"https?:|//|@import|url\(|@font-face", re.sub(r"base64,[^\"]+", "", html))
    assert "default-src 'none'" in html


def test_content_policy_allows_only_the_pages_script() -> None:
    html = render_page(page_of("w"))
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    # Text of callers is never part of the script.
    assert script in render_page(page_of(EVIL))


def test_header_has_time_version_and_summary(read: Read) -> None:
    east = timezone(timedelta(hours=2))
    page = Page("t", "All is well.", verdict="neither", made=datetime(2026, 7, 1, 1, 30, tzinfo=east))
    got = read(page)
    assert got.texts["p"][0] == f"2026-06-30 23:30 UTC · refiner {refiner.__version__}"
    assert got.texts["p"][1] == "neither visible nor identifiable All is well."
    assert ("time", {"datetime": "2026-06-30T23:30:00+00:00"}) in got.tags


def test_sections_keep_their_order_and_are_numbered_by_label(read: Read) -> None:
    table, settings = Table("numbers", ["a"], [["1"]]), SettingsTable({"seed": 1})
    got = read(Page("t", "", sections=[table, Gallery("victims", []), settings, table]))
    assert got.texts["h2"] == ["Table 1 numbers", "Figure 1 victims", "Settings and seeds", "Table 2 numbers"]
    assert got.texts["li"] == got.texts["h2"]
    assert "nav" not in read(Page("t", "", sections=[table, settings])).texts


def test_any_class_with_title_and_html_is_a_section(read: Read) -> None:
    class Greeting:
        caption_label: ClassVar[str] = "Word"
        title = "Hello"

        def html(self, anchor: str) -> str:
            return f'<p id="{anchor}-word">there</p>'

    got = read(Page("t", "s", sections=[Greeting()]))
    assert got.texts["h2"] == ["Word 1 Hello"]
    assert got.texts["section"][0].endswith("there")


def test_equal_pages_give_equal_documents(audit: Callable[..., Page]) -> None:
    assert render_page(audit(2, 2, 2)) == render_page(audit(2, 2, 2))


def test_unknown_verdicts_and_times_without_zone_are_rejected() -> None:
    with pytest.raises(SettingError, match="verdict = 'safe': expected one of 'visible'"):
        Page("t", "s", verdict="safe")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="made = '2026-01-01T00:00:00': expected a time with a time zone"):
        Page("t", "s", made=datetime(2026, 1, 1))


def test_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_page(tmp_path / "page.html", Page("old", ""))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(DataError, match=r"page\.html: can't be written \(No space left on device\)"):
        write_page(target, Page("new", ""))
    assert "old" in target.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [target]


def test_report_package_does_not_import_torch() -> None:
    for file in Path(refiner.report.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "torch"], file
