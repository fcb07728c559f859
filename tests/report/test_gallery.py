"""Tests of the gallery: cards, groups, overview, filter."""

import re

import numpy as np
import pytest

from refiner.errors import DataError, SettingError
from refiner.report import VERDICTS, Card, CardGroup, Gallery, Verdict

GREY = np.full((32, 32, 3), 128, np.uint8)


def cards(*verdicts: Verdict | None) -> list[Card]:
    return [Card(f"victim {n}", GREY, GREY, verdict=verdict) for n, verdict in enumerate(verdicts)]


def test_card_shows_labelled_images_scores_and_verdict() -> None:
    scores = [("PSNR", "31.2 dB"), ("SSIM", "0.97")]
    card = Card("frog", GREY, GREY, GREY, scores, "visible")
    html = Gallery("t", [CardGroup("none", "DLG", [card, *cards(None)])]).html("a")
    first, second = html.split("<article")[1:]
    labels = ["original", "robust data", "reconstruction"]
    assert re.findall("<figcaption>(.*?)</figcaption>", first) == labels
    assert re.findall('alt="(.*?)"', first) == [f"frog, {label}" for label in labels]
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", first) == scores
    assert 'class="card visible"' in first
    assert "visible</span>" in first
    assert re.findall("<figcaption>(.*?)</figcaption>", second) == ["original", "reconstruction"]
    assert "badge" not in second


def test_few_groups_are_open_and_many_have_an_overview() -> None:
    groups = [CardGroup(d, a, cards("visible")) for d in ("none", "Refiner") for a in ("DLG", "LAMP")]
    few, many = Gallery("t", groups[:3]).html("a"), Gallery("t", groups).html("a")
    assert few.count("<details") == few.count(" open>") == 3
    assert "overview" not in few
    assert many.count("<details") == 4
    assert many.count(" open>") == 1
    links = re.findall(r'<a class="visible" href="#(.*?)"', many)
    assert links == re.findall('<details class="group" id="(.*?)"', many)


def test_overview_shows_the_worst_verdict_and_gaps() -> None:
    groups = [
        CardGroup("none", "DLG", cards("visible", "visible")),
        CardGroup("none", "LAMP", cards("visible", "neither", "identifiable")),
        CardGroup("Refiner", "DLG", cards("neither", "identifiable")),
        CardGroup("Soteria", "LAMP", cards("neither", "neither")),
        CardGroup("ATS", "LAMP", cards(None)),
        CardGroup("pruning", "DLG", cards("no verdict", "no verdict")),
    ]
    html = Gallery("t", groups).html("a").split("</table>")[0]
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall("<td>(.*?)</td>", html)]
    assert cells == [
        *("all visible", "1 of 3 visible"),
        *("1 of 2 identifiable", "–"),
        *("–", "all neither"),
        *("–", "1 victim"),
        *("no verdict", "–"),
    ]


def test_group_counts_its_verdicts() -> None:
    html = Gallery("t", [CardGroup("none", "DLG", cards("neither", "visible", "neither"))]).html("a")
    assert "1 visible, 2 neither</span></summary>" in html


@pytest.mark.parametrize(
    ("verdicts", "boxes"),
    [(("visible",), []), (("neither", "visible"), ["visible", "neither"]), (VERDICTS, list(VERDICTS))],
)
def test_filter_offers_only_verdicts_that_occur(verdicts: tuple[Verdict, ...], boxes: list[str]) -> None:
    html = Gallery("t", [CardGroup("none", "DLG", cards(*verdicts))]).html("a")
    assert re.findall('type="checkbox" value="(.*?)"', html) == boxes


def test_wrong_pixels_verdicts_and_duplicate_groups_are_rejected() -> None:
    with pytest.raises(DataError, match=r"robust data: float64 \[2, 2\], expected uint8"):
        Card("a", GREY, GREY, np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="verdict = 'fine'"):
        Card("a", GREY, GREY, verdict="fine")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="two groups are named 'none' against 'DLG'"):
        Gallery("t", [CardGroup("none", "DLG", []), CardGroup("none", "DLG", [])])


def test_empty_gallery_has_no_cards() -> None:
    assert Gallery("t", []).html("a") == ""
    assert "<article" not in Gallery("t", [CardGroup("none", "DLG", [])]).html("a")
