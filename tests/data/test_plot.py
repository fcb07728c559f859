"""The plot of a partition says what the counts say, in each kind of file."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from refiner.data.drawing import Box
from refiner.data.plot import check_plot, draw_labels, write_plot
from refiner.errors import DataError, SettingError

COUNTS = torch.tensor([[30, 0, 10], [5, 15, 0], [0, 0, 60]])


def test_boxes_are_as_long_as_their_counts() -> None:
    drawing = draw_labels(COUNTS, ("cat", "dog", "emu"), "A title")
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box) and shape.told]
    assert [box.told for box in boxes] == [
        "client 1, cat: 30 of 40",
        "client 1, emu: 10 of 40",
        "client 2, cat: 5 of 20",
        "client 2, dog: 15 of 20",
        "client 3, emu: 60 of 60",
    ]
    unit = boxes[0].width / 30
    for box, count in zip(boxes, (30, 10, 5, 15, 60), strict=True):
        assert box.width == pytest.approx(unit * count)
    # End to end in a row, and each class of one colour.
    assert boxes[1].x == pytest.approx(boxes[0].x + boxes[0].width) and boxes[1].y == boxes[0].y
    assert boxes[0].fill == boxes[2].fill != boxes[1].fill == boxes[4].fill
    assert max(box.x + box.width for box in boxes) < drawing.width


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (3, 10), (10, 21), (100, 200), (300, 3)])
def test_any_number_fits(clients: int, classes: int, tmp_path: Path) -> None:
    counts = torch.randint(0, 50, (clients, classes))
    counts[:, 0] += 1
    drawing = draw_labels(counts)
    root = ElementTree.fromstring(drawing.svg())
    told = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")][1:]
    assert sum(int(re.findall(r": ([\d,]+) of", text)[0].replace(",", "")) for text in told) == counts.sum()
    assert drawing.height < 1800
    fills = {shape.fill for shape in drawing.shapes if isinstance(shape, Box) and shape.told}
    assert len(fills) == int((counts.sum(0) > 0).sum())


def test_svg_and_html(tmp_path: Path) -> None:
    svg = write_plot(tmp_path / "a.svg", COUNTS, ("a", "<b>", "c"), "Less < more").read_text()
    assert "&lt;b&gt;" in svg and "<b>" not in svg and "Less &lt; more" in svg
    page = write_plot(tmp_path / "a.HTML", COUNTS, title="Less < more").read_text()
    assert page.startswith("<!doctype html>") and "<title>Less &lt; more</title>" in page
    # It opens offline.
    assert not re.search(r"(src|href)=|url\(|@import", page + svg)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.HTML", "a.svg"]


def test_png_has_the_colours(tmp_path: Path) -> None:
    with Image.open(write_plot(tmp_path / "a.png", COUNTS)) as image:
        assert image.size[0] == 1800
        colours = image.getcolors(1_000_000)
    assert colours is not None
    areas = {f"#{r:02x}{g:02x}{b:02x}": count for count, (r, g, b) in colours if count > 2000}  # type: ignore[misc]
    # 35 of class 0, 15 of class 1, 70 of class 2, and what the legend adds.
    first, second, third = (areas[colour] for colour in ("#4e79a7", "#f28e2b", "#e15759"))
    assert third / first == pytest.approx(2, rel=0.05) and first / second == pytest.approx(35 / 15, rel=0.05)


def test_what_can_not_be_drawn_is_refused(tmp_path: Path) -> None:
    for counts in (
        torch.zeros(2, 2).long(),
        torch.zeros(2).long(),
        torch.tensor([[-1, 2]]),
        torch.zeros(0, 3),
    ):
        with pytest.raises(DataError, match="counts: "):
            draw_labels(counts)
    with pytest.raises(
        SettingError, match=r"plot = 'a\.pdf': expected a name ending in \.svg, \.html or \.png"
    ):
        check_plot("a.pdf")
