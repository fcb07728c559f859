"""The page as a reader sees it: in Chromium, from a file, on a phone and on a desk."""

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from refiner.data import load_sample
from refiner.report import Gallery, GalleryRow, Page, Picture, Table, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of twelve real images, with long words where they hurt most."""
    sample = load_sample()
    pixels = (sample.images[:12] * 255).byte().permute(0, 2, 3, 1).contiguous().numpy()
    names = [sample.class_names[label] for label in sample.labels[:12].tolist()]
    noise = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
    rows = [
        GalleryRow("Raw", [Picture(p, f"Raw {n}", n) for p, n in zip(pixels, names, strict=True)]),
        GalleryRow(
            "Robust", [Picture(p, f"Robust {n}", "9.87 dB") for p, n in zip(noise, names, strict=True)]
        ),
    ]
    table = Table(
        "Measures", [f"column {n}" for n in range(12)], [[f"{n}.123" for n in range(12)]] * 3, "A note."
    )
    page = Page(
        "What leaves the client, and what stays",
        "A lead with a Donaudampfschifffahrtsgesellschaftskapitänswitwenrentenauszahlungsstelle in it.",
        [("Images", "12"), ("Folder", "/a/" + "very_long_name_without_a_break" * 4)],
        [table],
        [Gallery("Raw above robust", "Each column is one sample.", rows)],
    )
    return write_page(tmp_path_factory.mktemp("page") / "index.html", page).as_uri()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page(browser: "Browser", address: str, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    troubles: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)

    sizes = page.evaluate("[...document.images].map(i => i.complete ? [i.naturalWidth, i.width] : [0, 0])")
    assert len(sizes) == 24
    assert all(natural == 32 and shown >= 50 for natural, shown in sizes)
    assert page.evaluate("getComputedStyle(document.images[0]).imageRendering") == "pixelated"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Raw above robust: the same column, the second below the first.
    tops = page.evaluate(
        "[...document.querySelectorAll('.plate')].map(p => [...p.querySelectorAll('.strip')].map("
        "s => { const r = s.querySelector('img').getBoundingClientRect(); return [r.left, r.top]; }))"
    )
    assert all(first[0] == second[0] and first[1] < second[1] for first, second in tops)

    def luminance(colour: str) -> float:
        channels = [int(number) / 255 for number in re.findall(r"\d+", colour)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))

    paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.05) == (scheme == "dark")
    for selector in ("h1", ".lead", "dt", ".kind", "figcaption", "footer"):
        ink = luminance(page.evaluate("s => getComputedStyle(document.querySelector(s)).color", selector))
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4.5, (selector, contrast)  # WCAG AA

    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert troubles == []
    page.close()


def test_print(browser: "Browser", address: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()
