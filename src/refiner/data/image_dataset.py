"""The one form that data have in memory, wherever they come from."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError


@dataclass(frozen=True, eq=False)
class Data:
    """Images uint8 [N, 3, H, W] and their labels int64 [N]: one split of one source.

    >>> data = Data(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5) % 2, 2, "zeros", "train")
    >>> len(data), [len(y) for _, y in data.batches(2)]
    (5, [2, 2, 1])
    """

    images: Tensor
    """Memory-mapped where they come from the cache: only what is used is read."""
    labels: Tensor
    classes: int
    name: str
    split: str
    class_names: tuple[str, ...] = ()
    """One a class, or none where the source doesn't name them."""

    def __post_init__(self) -> None:
        told = f"{self.name} {self.split}"
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or self.images.shape[1] != 3:
            raise DataError(
                f"{told}: images are {self.images.dtype} {list(self.images.shape)}, "
                "expected torch.uint8 [N, 3, H, W]"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{told}: labels are {self.labels.dtype} {list(self.labels.shape)}, "
                f"expected torch.int64 [{len(self.images)}]"
            )
        if not len(self.images):
            raise DataError(f"{told}: no images")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= checks.integer("classes", self.classes, 1):
            raise DataError(f"{told}: labels in [{low}, {high}], expected [0, {self.classes - 1}]")
        if self.class_names and len(self.class_names) != self.classes:
            raise DataError(f"{told}: {len(self.class_names)} names of classes, expected {self.classes}")

    def __len__(self) -> int:
        return len(self.images)

    def batches(
        self, size: int, *, indices: Tensor | None = None, seed: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of float32 images [B, 3, H, W] in 0..1 and their labels [B]; the last may be smaller.

        Of all samples or of those at `indices`, as a partition gives them; in an order drawn by `seed`, or
        as they lie without one.

        >>> data = Data(torch.full((4, 3, 2, 2), 255, dtype=torch.uint8), torch.arange(4), 4, "white", "all")
        >>> [y.tolist() for _, y in data.batches(3, indices=torch.tensor([3, 1]))]
        [[3, 1]]
        >>> x, y = next(data.batches(4, seed=0))
        >>> float(x.min()), sorted(y.tolist())
        (1.0, [0, 1, 2, 3])
        """
        checks.integer("size", size, 1)
        order = torch.arange(len(self)) if indices is None else self._checked(indices)
        if seed is not None:
            draws = torch.Generator().manual_seed(checks.integer("seed", seed, 0, 2**32 - 1))
            order = order[torch.randperm(len(order), generator=draws)]
        return ((self.images[rows].float().div_(255), self.labels[rows]) for rows in torch.split(order, size))

    def _checked(self, indices: Tensor) -> Tensor:
        fit = indices.dtype == torch.int64 and indices.dim() == 1
        if not fit or (len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self)):
            raise DataError(
                f"indices: {indices.dtype} {list(indices.shape)}, expected torch.int64 [n] "
                f"in [0, {len(self) - 1}]"
            )
        return indices
