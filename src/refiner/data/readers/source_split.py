"""What a reader returns: the splits it found, with labels in memory and images decoded block by block."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError

ImageBlock = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class SourceSplit:
    """One split of a dataset as its files hold it."""

    labels: NDArray[np.int64]
    """int64 [N]"""
    blocks: Callable[[], Iterator[ImageBlock]]
    """Reads the images, in blocks of uint8 [n, 3, H, W]; nothing is decoded before it is called."""
    attributes: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """What the files say of each image besides its label, int64 [N] by name; −1 where it is unknown."""


LayoutReader = Callable[[Path], "Mapping[str, SourceSplit] | None"]
"""Returns the splits in a file or folder, or None if the files there have another layout."""


def iter_blocks(images: NDArray[Any], block_size: int = 2048) -> Iterator[ImageBlock]:
    """Yields uint8 images [N, 3, H, W] of any strides as contiguous blocks.

    >>> [block.shape for block in iter_blocks(np.zeros((5, 3, 2, 2), np.uint8), block_size=4)]
    [(4, 3, 2, 2), (1, 3, 2, 2)]
    """
    for start in range(0, len(images), block_size):
        yield np.ascontiguousarray(images[start : start + block_size])


def checked_blocks(
    split: SourceSplit, title: str, side: int, limit: int | None = None
) -> Iterator[ImageBlock]:
    """Yields the first `limit` images of a split in blocks; raises if images and labels do not match.

    >>> split = SourceSplit(np.zeros(3, np.int64), lambda: iter([np.zeros((2, 3, 4, 4), np.uint8)]))
    >>> [block.shape for block in checked_blocks(split, "svhn test", 4, limit=1)]
    [(1, 3, 4, 4)]
    >>> list(checked_blocks(split, "svhn test", 4))
    Traceback (most recent call last):
    refiner.errors.DataError: svhn test: 2 images, but 3 labels
    """
    shape, total = (3, side, side), len(split.labels)
    count = total if limit is None else min(limit, total)
    done = 0
    for block in split.blocks():
        if block.dtype != np.uint8 or block.shape[1:] != shape:
            raise DataError(
                f"{title}: images of {list(block.shape[1:])}, expected {list(shape)}",
                field="images",
                value=block,
                expected=f"images of {list(shape)}",
            )
        if done + len(block) > total:
            raise DataError(
                f"{title}: more images than the {total} labels",
                field="images",
                value=done + len(block),
                expected=f"{total} images",
            )
        part = block[: count - done]
        done += len(part)
        yield part
        if done == count < total:
            return
    if done != count:
        raise DataError(
            f"{title}: {done} images, but {total} labels",
            field="images",
            value=done,
            expected=f"{total} images",
        )
