"""Image grids: many small images of one size in one lossless image, row by row."""

import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from refiner.checks import integer, wrong
from refiner.data.image_decoding import decode_image
from refiner.errors import DataError
from refiner.files import file_error, write_atomically


def read_image_grid(
    path: str | os.PathLike[str], count: int, size: int | tuple[int, int], columns: int = 100
) -> Tensor:
    """The first images of a grid.

    Args:
        path: The image file with the grid.
        count: How many images to read, row by row.
        size: The side of one image, or its height and width.
        columns: The number of images in a row.

    Returns:
        uint8 [count, 3, height, width].

    Raises:
        DataError: If the file is not a readable image or does not have the size of such a grid.

    >>> import tempfile
    >>> images = torch.arange(3 * 3 * 2 * 2).reshape(3, 3, 2, 2).to(torch.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_image_grid(Path(folder) / "grid.png", images, columns=2)
    ...     bool((read_image_grid(file, count=3, size=2, columns=2) == images).all())
    True
    """
    count, columns = integer("count", count, 1), integer("columns", columns, 1)
    height, width = _height_and_width(size)
    pixels = decode_image(Path(path), str(path))
    rows, remainder = divmod(pixels.shape[0], height)
    if remainder or pixels.shape[1] != columns * width or rows * columns < count:
        raise file_error(
            path,
            f"{pixels.shape[1]}×{pixels.shape[0]} pixels, expected {columns * width}×"
            f"{-(-count // columns) * height} for {count} images of {width}×{height} in {columns} columns",
            f"a grid of {count} images of {width}×{height} in {columns} columns",
        )
    grid = pixels.reshape(rows, height, columns, width, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(grid.reshape(-1, 3, height, width)[:count].copy())


def write_image_grid(path: str | os.PathLike[str], images: Tensor, columns: int = 100) -> Path:
    """Writes images as a lossless grid; unused cells of the last row are black.

    Args:
        path: A `.png` or `.webp` file.
        images: uint8 [N, 3, height, width].
        columns: The number of images in a row.

    Returns:
        The path of the file.

    Raises:
        SettingError: If the path has another suffix.
        DataError: If the images have another type or shape, or the file can't be written.

    >>> write_image_grid("grid.jpg", torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    Traceback (most recent call last):
    refiner.errors.SettingError: path = 'grid.jpg': expected a name ending in .png or .webp
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in (".png", ".webp"):
        raise wrong("path", str(path), "a name ending in .png or .webp")
    columns = integer("columns", columns, 1)
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3 or images.numel() == 0:
        raise DataError(
            f"images: {images.dtype} {list(images.shape)}, expected torch.uint8 [N, 3, height, width]",
            field="images",
            value=images,
            expected="torch.uint8 [N, 3, height, width]",
        )
    count, _, height, width = images.shape
    rows = -(-count // columns)
    grid = np.zeros((rows * columns, 3, height, width), np.uint8)
    grid[:count] = images.detach().cpu().numpy()
    tiled = grid.reshape(rows, columns, 3, height, width).transpose(0, 3, 1, 4, 2)
    buffer = io.BytesIO()
    image = Image.fromarray(tiled.reshape(rows * height, columns * width, 3))
    if suffix == ".png":
        image.save(buffer, "PNG", optimize=True)
    else:
        image.save(buffer, "WEBP", lossless=True, exact=True, quality=80, method=4)
    return write_atomically(target, buffer.getvalue())


def _height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return integer("size", height, 1), integer("size", width, 1)
