"""Encoded images of any size as pixels of one size."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from refiner.data.decode import decode
from refiner.data.images import fit
from refiner.data.readers.raw import Block
from refiner.errors import DataError

_PIECE = 512


def pixels_of(source: Path | bytes, name: str, size: int | None = None, centre: int | None = None) -> Block:
    """An image as uint8 [3, H, W]: its middle `centre` × `centre` if given, brought to `size` if given.

    >>> pixels_of(b"no image", "a.png")
    Traceback (most recent call last):
    refiner.errors.DataError: a.png: not an image that can be read (cannot identify image file)
    """
    found = decode(source, name)
    height, width = found.shape[:2]
    if centre is not None and min(height, width) > centre:
        top, left = (height - centre) // 2, (width - centre) // 2
        found = found[top : top + centre, left : left + centre]
    return scaled(np.ascontiguousarray(found.transpose(2, 0, 1)), size)


def scaled(image: Block, size: int | None) -> Block:
    """uint8 [3, H, W] with its shorter side brought to `size` and the centre cut out.

    >>> scaled(np.full((3, 8, 4), 7, np.uint8), 2).tolist()[0]
    [[7, 7], [7, 7]]
    """
    if size is None or image.shape[1:] == (size, size):
        return image
    smaller = fit(torch.from_numpy(image)[None].float().div_(255), size)[0]
    return np.asarray(smaller.mul(255).round_().to(torch.uint8).numpy())


def in_blocks(names: Iterable[str], read: Callable[[str], Block]) -> Iterator[Block]:
    """Images one after another, in blocks; all must be of one size.

    >>> [block.shape for block in in_blocks("ab", lambda name: np.zeros((3, 4, 4), np.uint8))]
    [(2, 3, 4, 4)]
    """
    held: list[Block] = []
    first: tuple[str, tuple[int, ...]] | None = None
    for name in names:
        found = read(name)
        first = first or (name, found.shape)
        if found.shape != first[1]:
            (height, width), (first_height, first_width) = found.shape[1:], first[1][1:]
            raise DataError(
                f"{name}: {width}×{height} pixels, expected {first_width}×{first_height} "
                f"as in {first[0]}; set size to make them equal"
            )
        held.append(found)
        if len(held) == _PIECE:
            yield np.stack(held)
            held = []
    if held:
        yield np.stack(held)
