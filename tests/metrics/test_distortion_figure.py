"""The figure of distortions: its cells, and their scores."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.data import load_sample, read_image_grid
from refiner.errors import DataError, SettingError
from refiner.metrics import score_all
from refiner.metrics.distortion_figure import CELLS_PER_ROW, distort, write_distortion_figure
from refiner.metrics.distortions import distortion_table

SHIP = load_sample().images[78]


@pytest.mark.parametrize(("name", "zoom"), [("figure.png", 1), ("figure.webp", 3)])
def test_every_image_is_in_the_file(tmp_path: Path, name: str, zoom: int) -> None:
    rows, images = write_distortion_figure(tmp_path / name, SHIP, zoom=zoom), distort(SHIP)
    assert [row.name for row in rows] == list(images) and len(rows) % CELLS_PER_ROW == 0
    cells = read_image_grid(tmp_path / name, count=len(rows), size=32 * zoom + 4, columns=CELLS_PER_ROW)
    expected = (255 * torch.cat(list(images.values()))).round().byte()
    assert torch.equal(cells[..., 2:-2:zoom, 2:-2:zoom], expected)
    assert torch.equal(cells[..., 1 + zoom : -2 : zoom, 1 + zoom : -2 : zoom], expected)
    assert (cells[..., :2] == 255).all() and (cells[..., -2:, :] == 255).all()


def test_rows_have_the_scores_of_their_cells(tmp_path: Path) -> None:
    rows = {row.name: row for row in write_distortion_figure(tmp_path / "a.png", SHIP)}
    for name, image in distort(SHIP).items():
        for score, value in score_all(image, SHIP[None]).items():
            assert getattr(rows[name], score) == pytest.approx(value.item(), abs=1e-4), (name, score)
    # The strengths of the table are among them.
    table = {row.name: row for row in distortion_table(SHIP[None])}
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
        assert rows[cell].mse == pytest.approx(table[kind].mse, abs=1e-6)


def test_errors_grow_along_a_row(tmp_path: Path) -> None:
    errors = [row.mse for row in write_distortion_figure(tmp_path / "a.png", SHIP)]
    for start in range(CELLS_PER_ROW, len(errors), CELLS_PER_ROW):
        assert errors[start : start + CELLS_PER_ROW] == sorted(set(errors[start : start + CELLS_PER_ROW]))


def test_random_distortions_are_seeded() -> None:
    same, other = distort(SHIP, seed=0), distort(SHIP, seed=1)
    changed = {name for name, image in distort(SHIP).items() if not torch.equal(image, other[name])}
    assert changed == {n for n in same if "noise" in n or "jitter" in n}
    assert all(torch.equal(image, same[name]) for name, image in distort(SHIP).items())


def test_a_grey_image_is_written(tmp_path: Path) -> None:
    grey = SHIP.mean(0, keepdim=True)
    rows = write_distortion_figure(tmp_path / "a.png", grey, zoom=1)
    first = read_image_grid(tmp_path / "a.png", count=len(rows), size=36, columns=CELLS_PER_ROW)[
        0, :, 2:-2, 2:-2
    ]
    assert torch.equal(first, (255 * grey).round().byte().expand(3, -1, -1))


def test_invalid_input_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (
            lambda: write_distortion_figure(path, SHIP[None]),
            DataError,
            r"image: shape \[1, 3, 32, 32\], expected \[C",
        ),
        (lambda: write_distortion_figure(path, SHIP * torch.nan), DataError, "image: NaN or infinity"),
        (lambda: write_distortion_figure(path, SHIP[:, :20, :20]), DataError, "28 to 224 pixels per side"),
        (
            lambda: write_distortion_figure(path, SHIP, zoom=0),
            SettingError,
            r"zoom = 0: expected an integer in \[1, 16\]",
        ),
        (
            lambda: write_distortion_figure(path, SHIP, seed=-1),
            SettingError,
            "seed = -1: expected an integer in",
        ),
        (
            lambda: write_distortion_figure(tmp_path / "a.jpg", SHIP),
            SettingError,
            "a name ending in .png or .webp",
        ),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()
    assert not list(tmp_path.iterdir())
