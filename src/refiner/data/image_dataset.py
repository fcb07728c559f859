"""The form in which images and labels are kept in memory, whatever files they come from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """The images and labels of one split of a dataset.

    Args:
        images: uint8 [N, 3, H, W]. Memory-mapped if they come from the cache: only what is used is read.
        labels: int64 [N], each in [0, classes).
        classes: The number of classes.
        name: The name of the dataset.
        split: The name of the split.
        class_names: One name for each class, or none.
        attributes: Properties of the images besides the label, such as LFW's `gender`: int64 [N] by name,
            each ≥ 0, or −1 where it is unknown.

    Raises:
        DataError: If images, labels, class names or attributes do not have these shapes, types and ranges.

    >>> images = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    >>> data = ImageDataset(images, torch.arange(5) % 2, 2, "zeros", "train")
    >>> len(data), [len(y) for _, y in data.batches(2)]
    (5, [2, 2, 1])
    """

    images: Tensor
    labels: Tensor
    classes: int
    name: str
    split: str
    class_names: tuple[str, ...] = ()
    attributes: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        title = f"{self.name} {self.split}"
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or self.images.shape[1] != 3:
            raise DataError(
                f"{title}: images are {self.images.dtype} {list(self.images.shape)}, "
                "expected torch.uint8 [N, 3, H, W]",
                field="images",
                value=self.images,
                expected="torch.uint8 [N, 3, H, W]",
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            expected = f"torch.int64 [{len(self.images)}]"
            raise DataError(
                f"{title}: labels are {self.labels.dtype} {list(self.labels.shape)}, expected {expected}",
                field="labels",
                value=self.labels,
                expected=expected,
            )
        if not len(self.images):
            raise DataError(
                f"{title}: no images", field="images", value=self.images, expected="at least one image"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= checks.integer("classes", self.classes, 1):
            raise DataError(
                f"{title}: labels in [{low}, {high}], expected [0, {self.classes - 1}]",
                field="labels",
                value=self.labels,
                expected=f"integers in [0, {self.classes - 1}]",
            )
        if self.class_names and len(self.class_names) != self.classes:
            raise DataError(
                f"{title}: {len(self.class_names)} class names, expected {self.classes}",
                field="class_names",
                value=len(self.class_names),
                expected=str(self.classes),
            )
        for name, values in self.attributes.items():
            if values.dtype != torch.int64 or values.shape != self.labels.shape or int(values.min()) < -1:
                raise DataError(
                    field=f"{title}: attribute {name!r}",
                    value=values,
                    expected=f"torch.int64 [{len(self.images)}], each ≥ 0, or -1 for unknown",
                )

    def __len__(self) -> int:
        return len(self.images)

    def attribute(self, name: str) -> Tensor:
        """A property of every image besides its label.

        Args:
            name: Its name, such as `gender`.

        Returns:
            int64 [N]; −1 where it is unknown.

        Raises:
            DataError: If the files that the dataset was read from do not have it.

        >>> pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        >>> ImageDataset(pixels, torch.arange(2), 2, "zeros", "all").attribute("gender")
        Traceback (most recent call last):
        refiner.errors.DataError: attribute = 'gender': zeros has no attributes in these files
        """
        if name in self.attributes:
            return self.attributes[name]
        known = f"only {', '.join(self.attributes)}" if self.attributes else "no attributes"
        raise DataError(field="attribute", value=name, problem=f"{self.name} has {known} in these files")

    def subset(self, rows: Tensor | slice, *, split: str | None = None) -> "ImageDataset":
        """The dataset with some of its images only.

        Args:
            rows: Their numbers, int64 [n], or a mask, bool [N], or a slice.
            split: Another name for the split; the same if left out.

        Returns:
            Images, labels and attributes of these rows.

        >>> pixels = torch.zeros(4, 3, 4, 4, dtype=torch.uint8)
        >>> data = ImageDataset(pixels, torch.arange(4), 4, "zeros", "all", (), {"odd": torch.arange(4) % 2})
        >>> data.subset(torch.tensor([3, 0])).attribute("odd")
        tensor([1, 0])
        """
        return replace(
            self,
            images=self.images[rows],
            labels=self.labels[rows],
            split=self.split if split is None else split,
            attributes={name: values[rows] for name, values in self.attributes.items()},
        )

    def batches(
        self, size: int, *, indices: Tensor | None = None, seed: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterates over batches of float32 images [B, 3, H, W] in 0..1 and labels [B].

        Args:
            size: The number of samples in a batch; the last batch may be smaller.
            indices: Only these samples, int64 [n], such as one client's part of a partition.
            seed: Shuffles the samples; without one they keep their order.

        Returns:
            An iterator of (images, labels).

        Raises:
            DataError: If `indices` are not valid.

        >>> white = torch.full((4, 3, 2, 2), 255, dtype=torch.uint8)
        >>> data = ImageDataset(white, torch.arange(4), 4, "white", "all")
        >>> [y.tolist() for _, y in data.batches(3, indices=torch.tensor([3, 1]))]
        [[3, 1]]
        >>> x, y = next(data.batches(4, seed=0))
        >>> float(x.min()), sorted(y.tolist())
        (1.0, [0, 1, 2, 3])
        """
        checks.integer("size", size, 1)
        order = torch.arange(len(self)) if indices is None else self._check_indices(indices)
        if seed is not None:
            generator = torch.Generator().manual_seed(checks.integer("seed", seed, 0, 2**32 - 1))
            order = order[torch.randperm(len(order), generator=generator)]
        return ((self.images[rows].float().div_(255), self.labels[rows]) for rows in torch.split(order, size))

    def _check_indices(self, indices: Tensor) -> Tensor:
        has_type = indices.dtype == torch.int64 and indices.dim() == 1
        if not has_type or (len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self)):
            expected = f"torch.int64 [n] in [0, {len(self) - 1}]"
            raise DataError(
                f"indices: {indices.dtype} {list(indices.shape)}, expected {expected}",
                field="indices",
                value=indices,
                expected=expected,
            )
        return indices
