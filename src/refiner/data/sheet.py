"""Sheets: many small images of one size in one lossless image, row by row."""

import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from refiner.checks import integer, wrong
from refiner.data.decode import decode
from refiner.errors import DataError
from refiner.files import write_whole


def _sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of one image."""
    height, width = (size, size) if isinstance(size, int) else size
    return integer("size", height, 1), integer("size", width, 1)


def read_sheet(
    path: str | os.PathLike[str], count: int, size: int | tuple[int, int], columns: int = 100
) -> Tensor:
    """The first `count` images of a sheet as uint8 [count, 3, height, width].

    >>> import tempfile
    >>> images = torch.arange(3 * 3 * 2 * 2).reshape(3, 3, 2, 2).to(torch.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_sheet(Path(folder) / "sheet.png", images, columns=2)
    ...     bool((read_sheet(file, count=3, size=2, columns=2) == images).all())
    True
    """
    count, columns = integer("count", count, 1), integer("columns", columns, 1)
    height, width = _sides(size)
    sheet = decode(Path(path), str(path))
    rows, rest = divmod(sheet.shape[0], height)
    if rest or sheet.shape[1] != columns * width or rows * columns < count:
        raise DataError(
            f"{path}: {sheet.shape[1]}×{sheet.shape[0]} pixels, expected {columns * width}×"
            f"{-(-count // columns) * height} for {count} images of {width}×{height} in {columns} columns"
        )
    grid = sheet.reshape(rows, height, columns, width, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(grid.reshape(-1, 3, height, width)[:count].copy())


def write_sheet(path: str | os.PathLike[str], images: Tensor, columns: int = 100) -> Path:
    """Write uint8 images [N, 3, height, width] as a lossless `.png` or `.webp` sheet; black fills the rest.

    >>> write_sheet("sheet.jpg", torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    Traceback (most recent call last):
    refiner.errors.SettingError: path = 'sheet.jpg': expected a name ending in .png or .webp
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (".png", ".webp"):
        raise wrong("path", str(path), "a name ending in .png or .webp")
    columns = integer("columns", columns, 1)
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3 or images.numel() == 0:
        raise DataError(
            f"images: {images.dtype} {list(images.shape)}, expected torch.uint8 [N, 3, height, width]"
        )
    count, _, height, width = images.shape
    rows = -(-count // columns)
    grid = np.zeros((rows * columns, 3, height, width), np.uint8)
    grid[:count] = images.detach().cpu().numpy()
    tiled = grid.reshape(rows, columns, 3, height, width).transpose(0, 3, 1, 4, 2)
    buffer = io.BytesIO()
    image = Image.fromarray(tiled.reshape(rows * height, columns * width, 3))
    if kind == ".png":
        image.save(buffer, "PNG", optimize=True)
    else:
        image.save(buffer, "WEBP", lossless=True, exact=True, quality=80, method=4)
    return write_whole(target, buffer.getvalue())
