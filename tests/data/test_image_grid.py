"""Image grids are read back bit by bit; a grid of another shape raises."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from refiner.data import read_image_grid, write_image_grid
from refiner.errors import DataError, SettingError


@settings(max_examples=40)
@given(
    count=st.integers(1, 13),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    columns=st.integers(1, 7),
    kind=st.sampled_from([".png", ".webp"]),
    seed=st.integers(0, 2**31),
)
def test_round_trip(count: int, height: int, width: int, columns: int, kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)
    with TemporaryDirectory() as folder:
        file = write_image_grid(Path(folder) / f"grid{kind}", images, columns)
        assert torch.equal(read_image_grid(file, count, (height, width), columns), images)
        assert [entry.name for entry in Path(folder).iterdir()] == [file.name]


def test_images_are_ordered_row_by_row(tmp_path: Path) -> None:
    images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1).expand(6, 3, 1, 1).contiguous()
    write_image_grid(tmp_path / "a.png", images, columns=3)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (3, 2)
        assert image.getpixel((2, 1)) == (5, 5, 5)


@pytest.mark.parametrize(("count", "size", "columns"), [(7, 4, 3), (6, 5, 3), (6, 4, 2), (6, (4, 3), 3)])
def test_grid_of_another_shape_raises(
    tmp_path: Path, count: int, size: int | tuple[int, int], columns: int
) -> None:
    write_image_grid(tmp_path / "a.png", torch.zeros(6, 3, 4, 4, dtype=torch.uint8), columns=3)
    with pytest.raises(DataError, match=r"a\.png: 12×8 pixels, expected"):
        read_image_grid(tmp_path / "a.png", count, size, columns)


@pytest.mark.parametrize(
    "images", [torch.zeros(2, 3, 4, 4), torch.zeros(0, 3, 4, 4).byte(), torch.zeros(3, 4, 4).byte()]
)
def test_other_tensors_raise(tmp_path: Path, images: torch.Tensor) -> None:
    with pytest.raises(DataError, match=r"expected torch\.uint8"):
        write_image_grid(tmp_path / "a.png", images)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="count = 0"):
        read_image_grid(tmp_path / "a.png", 0, 4)
    with pytest.raises(SettingError, match="columns = 0"):
        write_image_grid(tmp_path / "a.png", torch.zeros(1, 3, 4, 4).byte(), columns=0)
    with pytest.raises(SettingError, match="size = 0"):
        read_image_grid(tmp_path / "a.png", 1, 0)
    with pytest.raises(DataError, match="no such file"):
        read_image_grid(tmp_path / "a.png", 1, 4)
