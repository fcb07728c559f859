"""The sheet of distortions: every cell is the image it is called, with the scores that the metrics give."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.data import load_sample, read_sheet
from refiner.errors import DataError, SettingError
from refiner.metrics import measure_all
from refiner.metrics.distortions import table
from refiner.metrics.figure import ACROSS, distorted, write_figure

SHIP = load_sample().images[78]


@pytest.mark.parametrize(("name", "zoom"), [("figure.png", 1), ("figure.webp", 3)])
def test_every_cell_is_on_the_sheet(tmp_path: Path, name: str, zoom: int) -> None:
    rows, made = write_figure(tmp_path / name, SHIP, zoom=zoom), distorted(SHIP)
    assert [row.name for row in rows] == list(made) and len(rows) % ACROSS == 0
    cells = read_sheet(tmp_path / name, count=len(rows), size=32 * zoom + 4, columns=ACROSS)
    expected = (255 * torch.cat(list(made.values()))).round().byte()
    assert torch.equal(cells[..., 2:-2:zoom, 2:-2:zoom], expected)
    assert torch.equal(cells[..., 1 + zoom : -2 : zoom, 1 + zoom : -2 : zoom], expected)
    assert (cells[..., :2] == 255).all() and (cells[..., -2:, :] == 255).all()


def test_rows_have_the_scores_of_their_cells(tmp_path: Path) -> None:
    rows = {row.name: row for row in write_figure(tmp_path / "a.png", SHIP)}
    for name, image in distorted(SHIP).items():
        for score, value in measure_all(image, SHIP[None]).items():
            assert getattr(rows[name], score) == pytest.approx(value.item(), abs=1e-4), (name, score)
    # The strengths of the table are among them.
    named = {row.name: row for row in table(SHIP[None])}
    for cell, kind in (
        ("none", "none"),
        ("flip", "flip"),
        ("own mean colour", "own mean colour"),
        ("uniform noise", "uniform noise"),
        ("shift by 1", "shift"),
        ("scale × 0.4", "scale"),
        ("noise, σ 0.065", "noise"),
        ("rotation by 90°", "rotation"),
        ("colour jitter 0.5", "colour jitter"),
    ):
        assert rows[cell].mse == pytest.approx(named[kind].mse, abs=1e-6)


def test_further_on_a_row_is_further_off(tmp_path: Path) -> None:
    errors = [row.mse for row in write_figure(tmp_path / "a.png", SHIP)]
    for start in range(ACROSS, len(errors), ACROSS):
        assert errors[start : start + ACROSS] == sorted(set(errors[start : start + ACROSS]))


def test_the_draws_are_seeded() -> None:
    same, other = distorted(SHIP, seed=0), distorted(SHIP, seed=1)
    changed = {name for name, image in distorted(SHIP).items() if not torch.equal(image, other[name])}
    assert changed == {n for n in same if "noise" in n or "jitter" in n}
    assert all(torch.equal(image, same[name]) for name, image in distorted(SHIP).items())


def test_a_grey_image(tmp_path: Path) -> None:
    grey = SHIP.mean(0, keepdim=True)
    rows = write_figure(tmp_path / "a.png", grey, zoom=1)
    first = read_sheet(tmp_path / "a.png", count=len(rows), size=36, columns=ACROSS)[0, :, 2:-2, 2:-2]
    assert torch.equal(first, (255 * grey).round().byte().expand(3, -1, -1))


def test_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: write_figure(path, SHIP[None]), DataError, r"image: shape \[1, 3, 32, 32\], expected \[C"),
        (lambda: write_figure(path, SHIP * torch.nan), DataError, "image: NaN or infinity"),
        (lambda: write_figure(path, SHIP[:, :20, :20]), DataError, "28 to 224 pixels a side"),
        (
            lambda: write_figure(path, SHIP, zoom=0),
            SettingError,
            r"zoom = 0: expected an integer in \[1, 16\]",
        ),
        (lambda: write_figure(path, SHIP, seed=-1), SettingError, "seed = -1: expected an integer in"),
        (lambda: write_figure(tmp_path / "a.jpg", SHIP), SettingError, "a name ending in .png or .webp"),
    ]
    for call, kind, told in calls:
        with pytest.raises(kind, match=told):
            call()
    assert not list(tmp_path.iterdir())
