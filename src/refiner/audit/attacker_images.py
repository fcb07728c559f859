"""Labelled public images that an attacker learns from, none of them a victim."""

from typing import NamedTuple

import torch
from torch import Tensor

from refiner.attacks.simulation import check_public_images
from refiner.audit.public_images import are_others
from refiner.core.task import Task
from refiner.data import load_public_sample
from refiner.errors import DataError


class AttackerImages(NamedTuple):
    """Labelled public images, and where they come from."""

    images: Tensor
    """`[N, *input]`"""
    labels: Tensor
    """`[N]`"""
    source: str


def choose_attacker_images(
    task: Task,
    original: Tensor,
    learner: str,
    least: int = 1,
    samples: int = 1,
    pool: tuple[Tensor, Tensor] | None = None,
) -> AttackerImages:
    """Return `pool`, or else the bundled public images, without the victims.

    Args:
        task: The model and its loss.
        original: The victims' images `[N, C, H, W]`.
        learner: What learns from the images, for messages.
        least: The fewest images that it can learn from.
        samples: The batch size for which so many are needed.
        pool: Labelled public images: `[N, C, H, W]` and `[N]`.

    Returns:
        The images, in the dtype of the victims' and where the pool was: a large pool may stay on the CPU.

    Raises:
        DataError: There are no images that fit the task, too few, or nothing but victims.

    >>> from refiner import LeNet, load_sample
    >>> victims = load_sample().images[:2]
    >>> task = Task(LeNet(), example=victims)
    >>> choose_attacker_images(task, victims, "linear").source
    '3000 bundled public images'
    """
    if pool is None:
        sample = load_public_sample()
        if sample.images.shape[1:] != original.shape[1:] or task.classes < len(sample.class_names):
            raise DataError(
                f"public images: none, {learner} learns from labelled images like the victims'",
                field="pool",
                expected="labelled public images",
            )
        images, labels, origin = sample.images, sample.labels, "bundled public images"
    else:
        images, labels = checked_pool(pool)
        origin = "images as given"
    # One message for a wrong shape comes before the comparison with the victims, which needs the same shape.
    check_public_images(task, images, labels, 1, learner)
    images = images.to(original.dtype)
    is_other = are_others(images, original)
    if not is_other.any():
        expected = "images other than the victims, which all of these are"
        raise DataError(field="public_images", value=len(images), expected=expected)
    images, labels = images[is_other], labels[is_other]
    check_public_images(task, images, labels, least, learner, samples)
    return AttackerImages(images, labels, f"{len(images)} {origin}")


def checked_pool(pool: object, field: str = "pool") -> tuple[Tensor, Tensor]:
    """Return images and labels of a pool that fit each other.

    Args:
        pool: A pair of tensors: images in 0..1 `[N, *input]`, and a label for each.
        field: What an error calls it.

    Returns:
        The pair.

    Raises:
        DataError: It is something else.
    """
    if not isinstance(pool, tuple) or len(pool) != 2 or not all(isinstance(t, Tensor) for t in pool):
        raise DataError(
            field=field, value=type(pool).__name__, expected="a pair of tensors: images and labels"
        )
    images, labels = pool
    if images.ndim < 2 or not len(images) or labels.shape != images.shape[:1]:
        raise DataError(
            field=field,
            value=[list(images.shape), list(labels.shape)],
            expected="one or more images [N, *input] and a label for each, [N]",
        )
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise DataError(field=field, value=images, expected="images with values in 0..1")
    return images, labels.to(torch.long) if not labels.is_floating_point() else labels
