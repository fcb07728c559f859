"""Tests of the page in Chromium, opened from a file, at phone and desktop width."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from refiner.data import load_sample
from refiner.report import (
    Card,
    CardGroup,
    Cell,
    Comparison,
    Distribution,
    Dot,
    Gallery,
    Grid,
    GridColumn,
    GridImage,
    ImageRow,
    InlineImage,
    Page,
    ReferenceLine,
    Scatter,
    Section,
    SettingsTable,
    Strip,
    Table,
    render_page,
    to_pixels,
    write_page,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request, Route
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser

Open = Callable[..., "Tab"]
Scheme = Literal["light", "dark"]
LONG = "Donaudampfschifffahrtsgesellschaftskapitänswitwenrentenauszahlungsstelle" * 3
GREY = np.full((32, 32, 3), 128, np.uint8)
# Returns the rendered colours of an element's background and text.
COLOURS = """selector => {
  const element = document.querySelector(selector);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); };
  const pixel = () => [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  const behind = [];
  for (let each = element; each; each = each.parentElement) behind.unshift(each);
  for (const each of behind) paint(getComputedStyle(each).backgroundColor);
  const back = pixel();
  const style = getComputedStyle(element);
  paint(element instanceof SVGElement ? style.fill : style.color);
  return [back, pixel()];
}"""


@dataclass
class Watched:
    """A tab, the one address that it may request, and all other requests and console messages."""

    tab: "Tab"
    address: str = ""
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tab.on("console", lambda message: self.problems.append(message.text))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.tab.on("request", self._record_request)
        self.tab.route("**/*", self._allow_only_page)

    def _record_request(self, request: "Request") -> None:
        if not request.url.startswith(("data:", self.address)):
            self.problems.append(request.url)

    def _allow_only_page(self, route: "Route") -> None:
        if route.request.url == self.address:
            route.continue_()
        else:
            route.abort()


@pytest.fixture(scope="module")
def watched(browser: "Browser") -> Iterator[Watched]:
    """One tab for all tests: opening another one takes a second."""
    tab = browser.new_page()
    yield Watched(tab)
    tab.close()


@pytest.fixture
def open_page(watched: Watched, tmp_path: Path) -> Iterator[Open]:
    """`open_page(page)`: a tab that shows it; fails on any console message or request."""
    tab = watched.tab
    watched.problems.clear()

    def show(page: Page, *, width: int = 1280, scheme: Scheme = "light") -> "Tab":
        watched.address = write_page(tmp_path / "index.html", page).as_uri()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(media="screen", color_scheme=scheme)
        tab.goto(watched.address)
        return tab

    yield show
    watched.address = "about:blank"
    tab.goto(watched.address)
    tab.context.clear_permissions()
    assert watched.problems == []


def contrasts(tab: "Tab", selectors: tuple[str, ...]) -> dict[str, float]:
    """The contrast of text and background for each selector, asked for in one message."""

    def luminance(channels: list[int]) -> float:
        unit = [channel / 255 for channel in channels]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in unit]
        return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))

    rendered = tab.evaluate(f"selectors => selectors.map({COLOURS})", list(selectors))
    pairs = [sorted(map(luminance, colours)) for colours in rendered]
    return {s: (light + 0.05) / (dark + 0.05) for s, (dark, light) in zip(selectors, pairs, strict=True)}


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_audit_page_is_readable(
    open_page: Open, audit: Callable[..., Page], width: int, scheme: Scheme
) -> None:
    tab = open_page(audit(3, 2, 3), width=width, scheme=scheme)
    sizes = tab.evaluate("[...document.images].map(i => i.complete ? [i.naturalWidth, i.naturalHeight] : [])")
    assert sizes == [[32, 32]] * (2 * 3 * 2 + 2 * 2 * 3 * 3)
    tab.get_by_role("button", name="Open all").click()
    shown = tab.evaluate("[...document.images].map(i => i.getBoundingClientRect().width)")
    assert min(shown) >= 80
    assert tab.evaluate("getComputedStyle(document.images[0]).imageRendering") == "pixelated"
    tab.locator("section.settings-table summary").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width

    paper, _ = tab.evaluate(COLOURS, "body")
    assert (max(paper) < 60) == (scheme == "dark")
    words = ("h1", ".byline", ".summary", ".note", "dt", ".kind", ".contents .kind", "figcaption", "footer")
    marks = ("a.visible", "a.identifiable", "a.neither", ".against", ".tally", ".card dt", ".who span")
    drawn = (".names text", ".axis text", ".axis p", "th button", ".copy button")
    badges = tuple(f".tools .badge.{verdict}" for verdict in ("visible", "identifiable", "neither"))
    for selector, value in contrasts(tab, (*words, *marks, *drawn, *badges)).items():
        assert value >= 4.5, selector  # WCAG AA


@pytest.mark.parametrize("width", [390, 1280])
def test_long_words_do_not_widen_the_page(open_page: Open, width: int) -> None:
    strips = [Strip(LONG, LONG, [0.0, 1.0, math.inf])]
    card = Card(LONG, GREY, GREY, GREY, [(LONG, LONG)], "visible")
    image = GridImage(GREY, LONG, "visible")
    sections: list[Section] = [
        Distribution(LONG, LONG, strips, [ReferenceLine(LONG, 0.1), ReferenceLine(LONG, 0.9)], LONG, LONG),
        Table(LONG, [LONG] * 3, [[LONG] * 3] * 2, LONG),
        Gallery(LONG, [CardGroup(LONG, LONG + str(n), [card], LONG) for n in range(4)], LONG),
        SettingsTable({LONG: {LONG: LONG}}, LONG, LONG),
        Grid(LONG, [LONG], [GREY], [GridColumn(LONG, [image], LONG, "visible")] * 9, 1, LONG),
        Scatter(LONG, [Dot(LONG, 0.0, 1.0), Dot(LONG, 1.0, 2.0)], LONG, LONG, note=LONG),
    ]
    for folded in (False, True):
        page = Page(LONG, LONG, [(LONG, LONG)], sections, LONG, "visible", answer=LONG)
        page = replace(page, sections=sections[:1], folded=sections[1:]) if folded else page
        tab = open_page(page, width=width)
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def column(tab: "Tab", number: int) -> list[str]:
    cells = tab.locator(f"tbody tr > :nth-child({number})")
    return [" ".join(cell.split()) for cell in cells.all_inner_texts()]


def test_table_is_sorted_by_click_and_by_keyboard(open_page: Open) -> None:
    rows: list[list[str | Cell]] = [
        ["Refiner 10", "12.7 ± 0.2 dB", Cell(verdict="neither"), "b"],
        ["none", "32.6 ± 9.9 dB", Cell(verdict="visible"), "a"],
        ["Refiner 9", "9.8 ± 3.0 dB", Cell(verdict="neither"), "B"],
        ["ATS", "–", Cell(verdict="identifiable"), "–"],
        ["noise", "−1.5 ± 0.1 dB", Cell(verdict="visible"), "a"],
    ]
    tab = open_page(Page("t", "s", sections=[Table("T", ["defence", "PSNR", "verdict", "word"], rows)]))
    heads = tab.locator("thead th")
    directions = "[...document.querySelectorAll('thead th')].map(th => th.ariaSort)"
    assert tab.evaluate(directions) == ["none"] * 4

    heads.nth(1).get_by_role("button").click()
    up = ["−1.5 ± 0.1 dB", "9.8 ± 3.0 dB", "12.7 ± 0.2 dB", "32.6 ± 9.9 dB"]
    assert column(tab, 2) == [*up, "–"]
    assert tab.evaluate(directions) == ["none", "ascending", "none", "none"]
    heads.nth(1).get_by_role("button").click()
    assert column(tab, 2) == [*up[::-1], "–"]  # blanks stay last
    assert tab.evaluate(directions) == ["none", "descending", "none", "none"]

    # The sort is stable in both directions.
    heads.nth(2).get_by_role("button").press("Enter")
    assert column(tab, 1) == ["none", "noise", "ATS", "Refiner 10", "Refiner 9"]
    tab.keyboard.press("Space")
    assert column(tab, 1) == ["Refiner 10", "Refiner 9", "ATS", "none", "noise"]
    assert tab.evaluate(directions) == ["none", "none", "descending", "none"]

    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert column(tab, 4) == ["a", "a", "b", "B", "–"]
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Enter")
    assert column(tab, 1) == ["ATS", "noise", "none", "Refiner 9", "Refiner 10"]


def test_wide_table_scrolls_in_its_own_box(open_page: Open) -> None:
    rows = [[f"row {n}", *(f"{n}.{c:03}" for c in range(14))] for n in range(3)]
    tab = open_page(Page("t", "s", sections=[Table("T", ["name", *map(str, range(14))], rows)]), width=390)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    box = tab.locator(".scroll")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    box.focus()
    tab.keyboard.press("ArrowRight")
    moved = (
        "async b => { while (!b.scrollLeft) await new Promise(requestAnimationFrame); return b.scrollLeft; }"
    )
    assert box.evaluate(moved) > 0


def test_gallery_can_be_filtered_and_opened(open_page: Open, audit: Callable[..., Page]) -> None:
    tab = open_page(audit(4, 4, 3))
    assert tab.locator("details.group").count() == 16
    assert tab.locator(".card:visible").count() == 3  # the first group alone is open
    # A link in the overview opens its group.
    tab.locator(".overview tbody tr").nth(1).get_by_role("link").nth(2).click()
    group = tab.locator("details.group").nth(6)
    assert group.locator(".card:visible").count() == 3
    assert "Refiner against GI with a generator" in group.inner_text()
    assert group.evaluate("group => group.getBoundingClientRect().top") < 100
    # Filters and the button act on all groups.
    tab.get_by_role("button", name="Open all").click()
    assert tab.locator(".card:visible").count() == 4 * 4 * 3
    for verdict in ("identifiable", "neither"):
        tab.get_by_label(verdict).uncheck()
    left = tab.locator(".card:visible")
    assert 0 < left.count() < 4 * 4 * 3
    assert set(left.evaluate_all("cards => cards.map(card => card.dataset.verdict)")) == {"visible"}
    assert 0 < tab.locator("details.group:visible").count() < 16
    tab.get_by_role("button", name="Close all").click()
    assert tab.locator(".card:visible").count() == 0


def test_settings_are_copied_as_json(open_page: Open, audit: Callable[..., Page]) -> None:
    page = audit(1, 1, 1)
    tab = open_page(page)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.locator("section.settings-table summary").click()
    tab.get_by_role("button", name="Copy as JSON").click()
    tab.get_by_text("Copied").wait_for()
    assert json.loads(tab.evaluate("navigator.clipboard.readText()")) == page.sections[3].values  # type: ignore[attr-defined]


def test_script_in_a_name_does_not_run(open_page: Open) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    card = Card(evil, GREY, GREY, scores=[(evil, evil)], verdict="visible")
    sections: list[Section] = [
        Gallery(evil, [CardGroup(evil, evil, [card], evil)]),
        Distribution(evil, evil, [Strip(evil, evil, [1.0])], [ReferenceLine(evil, 2.0)], evil, evil),
        Table(evil, [evil, "b"], [[evil, evil], ["b", "c"]]),
        SettingsTable({evil: evil}),
    ]
    tab = open_page(Page(evil, evil, sections=sections))
    tab.locator("thead button").first.click()
    assert tab.locator("h1").inner_text() == evil
    assert tab.evaluate("[document.scripts.length, document.images.length]") == [1, 2]


def test_browser_blocks_any_other_script(browser: "Browser", tmp_path: Path) -> None:
    broken = render_page(Page("t", "s")).replace("</main>", "<script>window.ran = true</script></main>")
    (tmp_path / "broken.html").write_text(broken, encoding="utf-8")
    tab = browser.new_page()
    tab.goto((tmp_path / "broken.html").as_uri())
    assert tab.evaluate("[document.scripts.length, window.ran ?? null]") == [2, None]
    tab.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_rows_of_a_comparison_are_aligned(open_page: Open, width: int) -> None:
    sample = load_sample()
    pixels = to_pixels(sample.images[:12])
    noise = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
    rows = [
        ImageRow("Raw", [InlineImage(each, "raw", "frog") for each in pixels]),
        ImageRow("Robust", [InlineImage(each, "robust", "9.87 dB") for each in noise]),
    ]
    tab = open_page(Page("t", "s", sections=[Comparison("Raw above robust", "", rows)]), width=width)
    assert min(tab.evaluate("[...document.images].map(i => i.width)")) >= 50
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tops = tab.evaluate(
        "[...document.querySelectorAll('.plate')].map(p => [...p.querySelectorAll('.strip')].map("
        "s => { const r = s.querySelector('img').getBoundingClientRect(); return [r.left, r.top]; }))"
    )
    assert all(first[0] == second[0] and first[1] < second[1] for first, second in tops)


def test_print_is_light_and_without_controls(open_page: Open, audit: Callable[..., Page]) -> None:
    tab = open_page(audit(2, 2, 2), scheme="dark")
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.get_by_role("button", name="Open all").is_visible()
    assert tab.pdf(format="A4").startswith(b"%PDF")


def test_folded_sections_open_by_keyboard_link_and_print(open_page: Open, audit: Callable[..., Page]) -> None:
    whole = audit(2, 2, 2)
    page = replace(whole, sections=whole.sections[:1], folded=whole.sections[1:], answer="Take Refiner.")
    tab = open_page(page, width=390)
    folded = tab.locator("details.folded")
    state = "all => all.map(each => each.open)"
    assert folded.evaluate_all(state) == [False] * 3
    assert tab.locator("strong").inner_text() == "Take Refiner."
    assert tab.locator(".facts").is_visible()
    # By keyboard.
    folded.nth(0).locator("> summary").focus()
    tab.keyboard.press("Enter")
    assert folded.evaluate_all(state) == [True, False, False]
    assert folded.nth(0).get_by_role("table").is_visible()
    # By the table of contents, also into a group of a folded gallery.
    tab.get_by_role("navigation", name="Contents").get_by_role("link", name="Victim by victim").last.click()
    assert folded.evaluate_all(state) == [True, True, False]
    assert folded.nth(1).locator("h2").is_visible()
    tab.goto(f"{tab.url.partition('#')[0]}#section-4")
    assert folded.nth(2).evaluate("each => each.open")
    # Printing opens all, and closes them again.
    tab.evaluate("for (const each of document.querySelectorAll('.folded')) each.open = false")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert folded.evaluate_all(state) == [True] * 3
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folded.evaluate_all(state) == [False] * 3
    # The accessible names of the sections are their headings, folded or not.
    for title in ("How well each attack did", "All numbers", "Settings and seeds"):
        assert tab.get_by_role("region", name=title).first.count() == 1
