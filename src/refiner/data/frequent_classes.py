"""Classes with enough images, or equally many: a dataset of people has many of whom there is only one."""

import torch

from refiner.checks import integer
from refiner.data.image_dataset import ImageDataset
from refiner.errors import DataError


def frequent_classes(data: ImageDataset, least: int, most: int | None = None) -> ImageDataset:
    """The images of those classes that have at least `least` of them, with the classes numbered anew.

    Args:
        data: The dataset.
        least: The fewest images of a class.
        most: The most images of a class; None for any number.

    Returns:
        The images in their order. Classes keep their order too; the first that is left is class 0.

    Raises:
        DataError: No class has so many images.
        SettingError: `least` or `most` is not an integer ≥ 1.

    >>> pixels, labels = torch.zeros(5, 3, 4, 4, dtype=torch.uint8), torch.tensor([2, 0, 1, 2, 0])
    >>> data = frequent_classes(ImageDataset(pixels, labels, 3, "people", "all", ("Al", "Bo", "Cy")), 2)
    >>> data.labels.tolist(), data.class_names
    ([1, 0, 1, 0], ('Al', 'Cy'))
    """
    counts = data.labels.bincount(minlength=data.classes)
    kept = (counts >= integer("least", least, 1)).nonzero()[:, 0]
    if most is not None:
        kept = kept[counts[kept] <= integer("most", most, least)]
        if not len(kept):
            expected = f"a number from {least} on that some class has as its number of images"
            raise DataError(field="most", value=most, expected=expected)
    if not len(kept):
        raise DataError(
            field="least", value=least, expected=f"at most {int(counts.max())}, the most images of a class"
        )
    number = torch.full((data.classes,), -1)
    number[kept] = torch.arange(len(kept))
    rows = number[data.labels] >= 0
    chosen = data.subset(rows)
    return ImageDataset(
        chosen.images,
        number[chosen.labels],
        len(kept),
        data.name,
        data.split,
        tuple(data.class_names[i] for i in kept.tolist()) if data.class_names else (),
        chosen.attributes,
    )


def limit_per_class(data: ImageDataset, most: int, *, seed: int) -> ImageDataset:
    """At most `most` images of every class, chosen at random.

    Args:
        data: The dataset.
        most: The most images of a class.
        seed: Seed of the choice.

    Returns:
        The images in their order.

    Raises:
        SettingError: `most` is not an integer ≥ 1, or `seed` not one ≥ 0.

    >>> pixels, labels = torch.zeros(5, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 0, 1, 0, 1])
    >>> limit_per_class(ImageDataset(pixels, labels, 2, "people", "all"), 1, seed=0).labels.tolist()
    [0, 1]
    """
    integer("most", most, 1)
    generator = torch.Generator().manual_seed(integer("seed", seed, 0))
    order = torch.randperm(len(data), generator=generator)
    by_class = order[data.labels[order].argsort(stable=True)]
    counts = data.labels.bincount(minlength=data.classes)
    place = torch.arange(len(data)) - (counts.cumsum(0) - counts)[data.labels[by_class]]
    return data.subset(by_class[place < most].sort().values)
