"""What a reader hands over: the splits it found, their images block by block."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Raw:
    """One split: labels int64 [N], and its images in blocks of uint8 [n, 3, H, W], read when asked for."""

    labels: NDArray[np.int64]
    blocks: Callable[[], Iterator[Block]]


Reader = Callable[[Path], "Mapping[str, Raw] | None"]
"""The splits that lie at a file or in a folder, or None if they have another layout there."""


def in_pieces(images: NDArray[Any], piece: int = 2048) -> Iterator[Block]:
    """uint8 [N, 3, H, W] of any strides as contiguous blocks.

    >>> [block.shape for block in in_pieces(np.zeros((5, 3, 2, 2), np.uint8), piece=4)]
    [(4, 3, 2, 2), (1, 3, 2, 2)]
    """
    for start in range(0, len(images), piece):
        yield np.ascontiguousarray(images[start : start + piece])
