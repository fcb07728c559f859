"""The victims of an audit: from the bundled sample, a dataset, or the user's own images."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.audit.public_images import without_victims
from refiner.audit.user_images import LabelledImages, read_user_images
from refiner.data import DATASETS, available_splits, load_data, load_public_sample, load_sample
from refiner.data.catalogue import ALIASES, find_dataset
from refiner.data.data_name import SAMPLE, is_named, qualified_name
from refiner.errors import DataError

# Victims of CIFAR-10 are its training images from here on; nothing that the package ships is trained on them.
_FIRST_VICTIM = 40_000
# Attacks are tuned on images from here on, or from behind the last victim if that is later.
_FIRST_TUNING_IMAGE = 41_000
_PUBLIC_IMAGES = 1000


@dataclass(frozen=True, eq=False)
class Victims:
    """The batches of an audit's clients, and other images of the same source."""

    x: Tensor
    """`[V, B, C, H, W]` in 0..1"""
    y: Tensor
    """`[V, B]`"""
    names: Sequence[str]
    """One per image: its file, if it has a file of its own."""
    public: Tensor | None
    """Images `[N, C, H, W]` that are not victims; None if the source has none."""
    classes: int
    source: str
    """Where the images come from, as shown in the report."""
    tuning_x: Tensor | None = None
    """Batches on which an attack may be tuned; None unless `tuning_victims` was given."""
    tuning_y: Tensor | None = None
    pool: tuple[Tensor, Tensor] | None = None
    """Labelled images `[N, C, H, W]` and `[N]` that an attack may learn from; None unless `public_images` was
    given and the source has some."""


def load_victims(
    data: str | None = None,
    *,
    root: Path | None = None,
    victims: int = 16,
    batch: int = 1,
    size: int | None = None,
    classes: int | None = None,
    seed: int = 0,
    tuning_victims: int = 0,
    public_images: int = 0,
) -> Victims:
    """Return the first images of the bundled sample, of a dataset, or of your own images as victims.

    Args:
        data: As for `load_data`: `sample`, the name of a dataset, or your own data. An image, a folder and an
            `.npz` may be without labels, which are then drawn at random. None is the sample.
        root: A folder with the dataset's original files, instead of the cache.
        victims: Number of clients.
        batch: Images in each client's batch.
        size: Resize your own images to this many pixels: the shorter side, then a centre crop.
        classes: Number of classes, if there are more than the labels show; labels that are drawn at random
            are below it.
        seed: Seed of labels that are drawn at random.
        tuning_victims: Number of further clients on which an attack may be tuned: the next images of
            the source; of CIFAR-10 those from training image 41,000 on.
        public_images: The most labelled images for an attack that learns: the bundled public images, training
            images of the dataset (of CIFAR-10 those from 1,000 to 39,999), or else the last images of the
            source that are neither victims nor tuned on.

    Returns:
        The victims, with up to 1,000 public images of the same source.

    Raises:
        DataError: if the data can't be read, or there are fewer images than asked for.

    >>> victims = load_victims(victims=2, batch=3)
    >>> victims.x.shape, victims.names[0], victims.y.tolist()
    (torch.Size([2, 3, 3, 32, 32]), 'airplane 1', [[0, 1, 2], [3, 4, 5]])
    """
    count = checks.integer("victims", victims, 1) * checks.integer("batch", batch, 1)
    tuning_count = checks.integer("tuning_victims", tuning_victims, 0) * batch
    checks.integer("public_images", public_images, 0)
    source, rest, pool = load_source(data, root, count, tuning_count, public_images, size, seed, classes)
    available = len(source.images)
    available_images = f"{data or SAMPLE} has {available} images"
    if available < count:
        raise DataError(
            field="victims",
            value=victims,
            expected=f"at most {available // batch} with batches of {batch}, since {available_images}",
        )
    if available < count + tuning_count:
        raise DataError(
            field="tuning_victims",
            value=tuning_victims,
            expected=f"at most {(available - count) // batch}, since {available_images}",
        )
    x, y = _batches(source, slice(0, count), batch)
    tuning = _batches(source, slice(count, count + tuning_count), batch) if tuning_count else (None, None)
    public = rest if rest is not None and len(rest) else None
    return Victims(
        x,
        y,
        source.names[:count],
        public,
        source.classes,
        source.source,
        tuning[0],
        tuning[1],
        pool if len(pool[1]) else None,
    )


def load_source(
    data: str | None,
    root: Path | None,
    count: int,
    tuning_count: int,
    public_images: int,
    size: int | None,
    seed: int,
    classes: int | None,
) -> tuple[LabelledImages, Tensor | None, tuple[Tensor, Tensor]]:
    """Return victims and then images to tune on, other images, and those to learn from.

    Args:
        data: As for `load_victims`.
        root: As for `load_victims`.
        count: The number of victims' images; fewer are returned where there are no more.
        tuning_count: The number of images to tune on.
        public_images: The most images to learn from.
        size: As for `load_victims`.
        seed: As for `load_victims`.
        classes: As for `load_victims`.

    Returns:
        The images from the first victim on, images for blind guesses, and images to learn from with labels.

    Raises:
        DataError: The data can't be read.
    """
    is_dataset = is_named(data)
    if root is not None and not is_dataset:
        datasets = ", ".join(DATASETS)
        raise DataError(
            field="root",
            value=str(root),
            problem=f"can be given only with a dataset, one of {datasets}",
        )
    if size is not None and (data in (None, SAMPLE) or is_dataset):
        raise DataError(field="size", value=size, problem="can be given only with your own images")
    if data is None or data == SAMPLE:
        sample = load_sample()
        names = [f"{sample.class_names[y]} {n}" for n, y in enumerate(sample.labels.tolist(), start=1)]
        source = LabelledImages(sample.images, sample.labels, names, len(sample.class_names), sample.source)
        others = load_public_sample() if public_images else sample
        rest, pool = None, (others.images[:public_images], others.labels[:public_images])
    elif is_dataset:
        source, rest, pool = _from_dataset(data, root, count, tuning_count, public_images)
    else:
        dataset_names = [*DATASETS, *ALIASES]
        if ":" not in qualified_name(data) and (close := get_close_matches(data, dataset_names, 1)):
            raise DataError(
                field="data",
                value=data,
                problem=f"no such file or folder; did you mean {close[0]!r}?",
            )
        source = read_user_images(data, size, seed, classes)
        # Copies of victims are no candidates.
        rest = without_victims(source.images[count : count + _PUBLIC_IMAGES], source.images[:count])
        pool = _last(source.images, source.labels, count + tuning_count, public_images)
    return source if classes is None else source.with_classes(classes), rest, pool


def load_labelled_images(
    data: str | None = None, *, limit: int, size: int | None = None, seed: int = 0, classes: int | None = None
) -> LabelledImages:
    """Return the first images of any source, as `load_victims` does.

    Args:
        data: As for `load_victims`.
        limit: The most images.
        size: As for `load_victims`.
        seed: Seed of labels that are drawn at random.
        classes: As for `load_victims`.

    Returns:
        Images with labels, names, the number of classes and their source.

    Raises:
        DataError: If the data can't be read.

    >>> load_labelled_images(limit=2).names
    ['airplane 1', 'automobile 2']
    """
    count = checks.integer("limit", limit, 1)
    source = load_source(data, None, count, 0, 0, size, seed, classes)[0]
    return source._replace(
        images=source.images[:count], labels=source.labels[:count], names=source.names[:count]
    )


def _batches(source: LabelledImages, rows: slice, batch: int) -> tuple[Tensor, Tensor]:
    images, labels = source.images[rows], source.labels[rows]
    return images.view(-1, batch, *images.shape[1:]), labels.view(-1, batch)


def _last(images: Tensor, labels: Tensor, used: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the last `count` images behind the first `used`, with their labels."""
    first = max(used, len(images) - count)
    return images[first:], labels[first:]


def _from_dataset(
    name: str, root: Path | None, count: int, tuning_count: int, public_images: int
) -> tuple[LabelledImages, Tensor, tuple[Tensor, Tensor]]:
    """Return victims of a dataset and then images to tune on, other images, and those to learn from."""
    if name == "cifar10":
        train = load_data(name, "train", root=root)
        images, labels = train.images, train.labels
        rest = images[:_PUBLIC_IMAGES]
        learned = slice(_PUBLIC_IMAGES, min(_PUBLIC_IMAGES + public_images, _FIRST_VICTIM))
        pool = (images[learned], labels[learned])
        first_tuning = max(_FIRST_TUNING_IMAGE, _FIRST_VICTIM + count)
        ranges = [
            slice(_FIRST_VICTIM, _FIRST_VICTIM + count),
            slice(first_tuning, first_tuning + tuning_count),
        ]
        images, labels = (torch.cat([tensor[rows] for rows in ranges]) for tensor in (images, labels))
    else:
        splits = available_splits(name, root)
        split = "test" if "test" in splits else splits[0]
        has_others = split == "test" and "train" in splits
        limit = count + max(_PUBLIC_IMAGES, tuning_count) + (0 if has_others else public_images)
        data = load_data(name, split, root=root, limit=limit)
        images, labels = data.images, data.labels
        rest = images[count : count + _PUBLIC_IMAGES]
        pool = _last(images, labels, count + tuning_count, public_images)
        if has_others and (public_images or not len(rest)):
            limit = public_images + (0 if len(rest) else _PUBLIC_IMAGES)
            train = load_data(name, "train", root=root, limit=limit)
            pool = (train.images[:public_images], train.labels[:public_images])
            rest = rest if len(rest) else train.images[-_PUBLIC_IMAGES:]
    names = [f"image {number}" for number in range(1, count + 1)]
    used = slice(0, count + tuning_count)
    source = LabelledImages(
        images[used].float() / 255, labels[used], names, find_dataset(name)[1].classes, name
    )
    return source, rest.float() / 255, (pool[0].float() / 255, pool[1])
