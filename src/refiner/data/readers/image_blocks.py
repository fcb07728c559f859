"""Encoded images of any size as blocks of uint8 arrays of one size."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from refiner.data.image_decoding import decode_image
from refiner.data.images import resize_and_crop
from refiner.data.readers.source_split import ImageBlock
from refiner.errors import DataError

_BLOCK_SIZE = 512


def read_image_array(
    source: Path | bytes, name: str, size: int | None = None, centre: int | None = None
) -> ImageBlock:
    """An image as uint8 [3, H, W]: cropped to its middle `centre` × `centre`, then resized to `size`.

    >>> read_image_array(b"no image", "a.png")
    Traceback (most recent call last):
    refiner.errors.DataError: a.png: not a readable image (cannot identify image file)
    """
    pixels = decode_image(source, name)
    height, width = pixels.shape[:2]
    if centre is not None and min(height, width) > centre:
        top, left = (height - centre) // 2, (width - centre) // 2
        pixels = pixels[top : top + centre, left : left + centre]
    return resize_image(np.ascontiguousarray(pixels.transpose(2, 0, 1)), size)


def resize_image(image: ImageBlock, size: int | None) -> ImageBlock:
    """uint8 [3, H, W] with its shorter side scaled to `size` and the centre cropped.

    >>> resize_image(np.full((3, 8, 4), 7, np.uint8), 2).tolist()[0]
    [[7, 7], [7, 7]]
    """
    if size is None or image.shape[1:] == (size, size):
        return image
    resized = resize_and_crop(torch.from_numpy(image)[None].float().div_(255), size)[0]
    return np.asarray(resized.mul(255).round_().to(torch.uint8).numpy())


def stack_in_blocks(names: Iterable[str], read: Callable[[str], ImageBlock]) -> Iterator[ImageBlock]:
    """Yields the images `read(name)` stacked in blocks; all must be of one size.

    >>> [block.shape for block in stack_in_blocks("ab", lambda name: np.zeros((3, 4, 4), np.uint8))]
    [(2, 3, 4, 4)]
    """
    images: list[ImageBlock] = []
    first: tuple[str, tuple[int, ...]] | None = None
    for name in names:
        image = read(name)
        first = first or (name, image.shape)
        if image.shape != first[1]:
            (height, width), (first_height, first_width) = image.shape[1:], first[1][1:]
            raise DataError(
                f"{name}: {width}×{height} pixels, expected {first_width}×{first_height} "
                f"as in {first[0]}; set size to make them equal",
                field="size",
                value=None,  # size was not given
                expected=f"{first_width}×{first_height}",
            )
        images.append(image)
        if len(images) == _BLOCK_SIZE:
            yield np.stack(images)
            images = []
    if images:
        yield np.stack(images)
