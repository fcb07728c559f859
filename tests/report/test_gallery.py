"""Every victim has its card, in its group, with its verdict in words."""

import re

import numpy as np
import pytest

from refiner.errors import DataError, SettingError
from refiner.report import VERDICTS, Card, Gallery, Group, Verdict

GREY = np.full((32, 32, 3), 128, np.uint8)


def cards(*verdicts: Verdict | None) -> list[Card]:
    return [Card(f"victim {n}", GREY, GREY, verdict=verdict) for n, verdict in enumerate(verdicts)]


def test_a_card_shows_its_images_labelled_its_scores_and_its_verdict() -> None:
    scores = [("PSNR", "31.2 dB"), ("SSIM", "0.97")]
    card = Card("frog", GREY, GREY, GREY, scores, "exposed")
    html = Gallery("t", [Group("none", "DLG", [card, *cards(None)])]).html("a")
    first, second = html.split("<article")[1:]
    labels = ["original", "robust data", "reconstruction"]
    assert re.findall("<figcaption>(.*?)</figcaption>", first) == labels
    assert re.findall('alt="(.*?)"', first) == [f"frog, {label}" for label in labels]
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", first) == scores
    assert 'class="card exposed"' in first
    assert "exposed</span>" in first
    assert re.findall("<figcaption>(.*?)</figcaption>", second) == ["original", "reconstruction"]
    assert "badge" not in second


def test_few_groups_are_open_and_many_have_an_overview() -> None:
    groups = [Group(d, a, cards("exposed")) for d in ("none", "Refiner") for a in ("DLG", "LAMP")]
    few, many = Gallery("t", groups[:3]).html("a"), Gallery("t", groups).html("a")
    assert few.count("<details") == few.count(" open>") == 3
    assert "overview" not in few
    assert many.count("<details") == 4
    assert many.count(" open>") == 1
    links = re.findall(r'<a class="exposed" href="#(.*?)"', many)
    assert links == re.findall('<details class="group" id="(.*?)"', many)


def test_the_overview_tells_the_worst_and_leaves_holes() -> None:
    groups = [
        Group("none", "DLG", cards("exposed", "exposed")),
        Group("none", "LAMP", cards("exposed", "protected", "borderline")),
        Group("Refiner", "DLG", cards("protected", "borderline")),
        Group("Soteria", "LAMP", cards("protected", "protected")),
        Group("ATS", "LAMP", cards(None)),
    ]
    html = Gallery("t", groups).html("a").split("</table>")[0]
    told = [re.sub("<.*?>", "", cell) for cell in re.findall("<td>(.*?)</td>", html)]
    assert told == [
        *("all exposed", "1 of 3 exposed"),
        *("1 of 2 borderline", "–"),
        *("–", "all protected"),
        *("–", "1 victim"),
    ]


def test_a_group_counts_its_verdicts_in_words() -> None:
    html = Gallery("t", [Group("none", "DLG", cards("protected", "exposed", "protected"))]).html("a")
    assert "1 exposed, 2 protected</span></summary>" in html


@pytest.mark.parametrize(
    ("verdicts", "boxes"),
    [(("exposed",), []), (("protected", "exposed"), ["exposed", "protected"]), (VERDICTS, list(VERDICTS))],
)
def test_only_verdicts_that_differ_can_be_chosen(verdicts: tuple[Verdict, ...], boxes: list[str]) -> None:
    html = Gallery("t", [Group("none", "DLG", cards(*verdicts))]).html("a")
    assert re.findall('type="checkbox" value="(.*?)"', html) == boxes


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(DataError, match=r"robust data: float64 \[2, 2\], expected uint8"):
        Card("a", GREY, GREY, np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="verdict = 'fine'"):
        Card("a", GREY, GREY, verdict="fine")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'none' against 'DLG' stands there twice"):
        Gallery("t", [Group("none", "DLG", []), Group("none", "DLG", [])])


def test_nothing_to_show() -> None:
    assert Gallery("t", []).html("a") == ""
    assert "<article" not in Gallery("t", [Group("none", "DLG", [])]).html("a")
