"""The page says what it was given, escaped, in one file that stands alone."""

import ast
import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import refiner.report
from refiner.errors import DataError
from refiner.report import Gallery, GalleryRow, Page, Picture, Table, render_page, write_page

VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """Collects elements, their text and their attributes, and checks the nesting."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data


def read(page: Page) -> Reader:
    reader = Reader()
    reader.feed(render_page(page))
    reader.close()
    assert reader.open == []
    return reader


def picture(value: int, alt: str = "a square", caption: str = "") -> Picture:
    return Picture(np.full((4, 6, 3), value, np.uint8), alt, caption)


def gallery(count: int, rows: int = 2) -> Gallery:
    return Gallery(
        "Pairs",
        "A note",
        [GalleryRow(f"row {r}", [picture(10 * r + c) for c in range(count)]) for r in range(rows)],
    )


TEXT = st.text(max_size=30)


@given(TEXT, TEXT, TEXT, TEXT)
def test_text_comes_back_as_it_was_and_adds_no_element(title: str, lead: str, cell: str, alt: str) -> None:
    def page(title: str, lead: str, cell: str, alt: str) -> Page:
        row = GalleryRow(cell, [picture(0, alt + "a", cell)])
        table = Table(title, [cell, "b"], [[cell, title]], "note")
        return Page(title, "l" + lead, [("n" + cell, title)], [table], [Gallery(title, "note", [row])])

    got = read(page(title, lead, cell, alt))
    # Captions of nothing but blanks are left out; everything else is a fixed set of elements.
    plain = read(page("t", "l", "c" if cell.strip() else "", "a"))
    assert [tag for tag, _ in got.tags] == [tag for tag, _ in plain.tags]
    image = next(attributes for tag, attributes in got.tags if tag == "img")
    assert image["alt"] == _kept(alt + "a")
    assert got.texts["h1"] == [_kept(title)]
    assert got.texts["p"][0] == _kept("l" + lead)
    assert got.texts["td"] == [_kept(title)]


def _kept(text: str) -> str:
    """What HTML can hold of a text."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join("\ufffd" if c not in "\t\n" and (c < " " or "\x7f" <= c <= "\x9f") else c for c in whole)


def test_attacks_by_text_stay_text() -> None:
    evil = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&amp;</style>"
    row = GalleryRow(evil, [picture(0, evil, evil)])
    page = Page(
        evil, evil, [(evil, evil)], [Table(evil, [evil], [[evil]], evil)], [Gallery(evil, evil, [row])]
    )
    got = read(page)
    assert "script" not in {tag for tag, _ in got.tags}
    assert all(not name.startswith("on") for _, attributes in got.tags for name in attributes)
    assert sum(tag == "img" for tag, _ in got.tags) == 1
    assert got.texts["title"] == [evil]


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    assert "a?" in write_page(tmp_path / "a.html", Page("a\ud800", "")).read_text(encoding="utf-8")


def test_pixels_come_back_exactly() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    html = render_page(Page("t", "", galleries=[Gallery("g", "", [GalleryRow("r", [Picture(pixels, "a")])])]))
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert np.array_equal(np.asarray(image), pixels)
    assert 'width="5" height="7"' in html


def test_nothing_comes_from_outside() -> None:
    html = render_page(Page("t", "l", [("a", "b")], [Table("t", ["a"], [["b"]])], [gallery(3)]))
    assert not re.search(r"https?:|//|@import|url\(|<script", re.sub(r"base64,[^\"]+", "", html))
    assert "default-src 'none'" in html


@pytest.mark.parametrize(("count", "plates"), [(1, [1]), (5, [5]), (6, [3, 3]), (8, [4, 4]), (11, [4, 4, 3])])
def test_raw_stays_above_robust_in_every_plate(count: int, plates: list[int]) -> None:
    html = render_page(Page("t", "", galleries=[gallery(count)]))
    parts = html.split('<div class="plate">')[1:]
    assert len(parts) == len(plates)
    for part, width in zip(parts, plates, strict=True):
        first, second = part.split('<p class="label">row 1')
        assert first.count("<img") == second.count("<img") == width
        assert "row 0" in first


def test_rows_of_different_lengths_and_none_at_all() -> None:
    uneven = Gallery("g", "", [GalleryRow("long", [picture(0)] * 7), GalleryRow("short", [picture(1)] * 2)])
    assert render_page(Page("t", "", galleries=[uneven])).count("<img") == 9
    assert "<img" not in render_page(Page("t", "", galleries=[Gallery("g", "", [])]))


def test_columns_of_numbers_are_set_to_the_right() -> None:
    rows = [["1", "12.5 dB", "good", "–"], ["2", "−3 %", "4", "1e-3"], ["3", "1,234", "", "0.1 ± 0.02"]]
    got = read(Page("t", "", tables=[Table("T", ["id", "psnr", "word", "loss"], rows)]))
    heads = [attributes.get("class") for tag, attributes in got.tags if tag == "th"][:4]
    assert heads == [None, "number", None, "number"]


def test_the_same_records_give_the_same_bytes() -> None:
    assert render_page(Page("t", "l", galleries=[gallery(4)])) == render_page(
        Page("t", "l", galleries=[gallery(4)])
    )


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4, 3)),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_other_pixels_are_refused(pixels: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DataError, match=r"pixels: .* expected uint8 \[height, width, 3\]"):
        Picture(pixels, "a")


def test_alt_and_cells_are_required() -> None:
    with pytest.raises(DataError, match="alt: empty"):
        picture(0, alt=" ")
    with pytest.raises(DataError, match="table 'T', row 2: 1 cells, expected 2"):
        Table("T", ["a", "b"], [["1", "2"], ["3"]])


def test_a_failed_write_leaves_the_old_page_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_page(tmp_path / "page.html", Page("old", ""))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(DataError, match=r"page\.html: can't be written \(No space left on device\)"):
        write_page(target, Page("new", ""))
    assert "old" in target.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [target]


def test_the_report_knows_nothing_of_torch() -> None:
    for file in Path(refiner.report.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "torch"], file
