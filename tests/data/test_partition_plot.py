"""The plot of a partition shows the counts, in each kind of file."""

import builtins
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from refiner.data import write_label_plot
from refiner.data.partition_plot import check_plot, plot_label_counts
from refiner.errors import DataError, SettingError

pytest.importorskip("matplotlib")
COUNTS = torch.tensor([[30, 0, 10], [5, 15, 0], [0, 0, 60]])


def spans(figure: Any) -> list[list[tuple[float, float]]]:
    """Start and end of each rectangle of each bar."""
    bars = figure.axes[0].collections
    return [[tuple(path.get_extents().intervalx) for path in bar.get_paths()] for bar in bars]


def test_rectangles_are_as_long_as_the_counts() -> None:
    figure = plot_label_counts(COUNTS, ("cat", "dog", "emu"), "A title")
    # Each rectangle starts where the one before it ends.
    assert spans(figure) == [
        [(0, 30), (30, 30), (30, 40)],
        [(0, 5), (5, 20), (20, 20)],
        [(0, 0), (0, 0), (0, 60)],
    ]
    colours = [bar.get_facecolors().tolist() for bar in figure.axes[0].collections]
    assert colours[0] == colours[1] == colours[2] and len(set(map(tuple, colours[0]))) == 3
    assert figure.axes[0].get_xlim()[1] > 60
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cat", "dog", "emu"]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 21), (300, 3)])
def test_any_number_of_clients_and_classes_fits(clients: int, classes: int) -> None:
    counts = torch.randint(0, 50, (clients, classes))
    counts[:, 0] += 1
    figure = plot_label_counts(counts)
    lengths = [[end - start for start, end in bar] for bar in spans(figure)]
    assert torch.tensor(lengths).round().long().tolist() == counts.tolist()
    assert figure.get_size_inches()[1] < 10
    assert len({tuple(colour) for colour in figure.axes[0].collections[0].get_facecolors()}) == classes


def test_svg_and_html_contain_the_text_and_need_no_other_file(tmp_path: Path) -> None:
    svg = write_label_plot(tmp_path / "a.svg", COUNTS, ("a $x$", "<b>", "c"), "Less < more").read_text()
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert "<b>" in texts and "a $x$" in texts and "Less < more" in texts
    assert (
        svg == write_label_plot(tmp_path / "b.svg", COUNTS, ("a $x$", "<b>", "c"), "Less < more").read_text()
    )
    page = write_label_plot(tmp_path / "a.HTML", COUNTS, title="Less < more").read_text()
    assert page.startswith("<!doctype html>") and "<title>Less &lt; more</title>" in page
    assert page.count("<svg") == 1 and "<?xml" not in page
    # References are only to parts of the same file.
    for file in (svg, page):
        assert not re.search(r"\b(src|href)=\"(?!#)|url\((?!#)|@import", file)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.HTML", "a.svg", "b.svg"]


def test_png_has_areas_in_proportion_to_the_counts(tmp_path: Path) -> None:
    with Image.open(write_label_plot(tmp_path / "a.png", COUNTS)) as image:
        assert image.size[0] == 1800
        colours = image.convert("RGB").getcolors(1_000_000)
    assert colours is not None
    areas = {f"#{r:02x}{g:02x}{b:02x}": count for count, (r, g, b) in colours if count > 2000}  # type: ignore[misc]
    # 35 of class 0, 15 of class 1, 70 of class 2, and the legend.
    first, second, third = (areas[colour] for colour in ("#4e79a7", "#f28e2b", "#e15759"))
    assert third / first == pytest.approx(2, rel=0.06) and first / second == pytest.approx(35 / 15, rel=0.06)


def test_wrong_counts_and_suffixes_raise() -> None:
    for counts in (
        torch.zeros(2, 2).long(),
        torch.zeros(2).long(),
        torch.tensor([[-1, 2]]),
        torch.zeros(0, 3),
    ):
        with pytest.raises(DataError, match="counts: "):
            plot_label_counts(counts)
    with pytest.raises(
        SettingError, match=r"plot = 'a\.pdf': expected a name ending in \.svg, \.html or \.png"
    ):
        check_plot("a.pdf")


def test_missing_matplotlib_raises_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def absent(name: str, *arguments: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "matplotlib":
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(DataError, match=r"^plot: needs matplotlib: pip install 'refiner-fl\[plot\]'$"):
        check_plot("a.png")
