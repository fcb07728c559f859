"""Clients who differ in an attribute, and the public people from whom an attacker learns it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.data import (
    ImageDataset,
    batches_of_mixed_values,
    batches_of_one_value,
    frequent_classes,
    limit_per_class,
    load_data,
)
from refiner.errors import DataError

PERSON = "person"
"""The attribute "is this the person with the most images", with gender as the task."""
PEOPLE = "people"
"""The attribute that says who an image is of, in data whose labels don't."""
_GENDER, _TASK = "gender", "labels"
# Fewer people with that many images than clients are needed.
_LEAST_IMAGES = 5
_WOMAN = 0


@dataclass(frozen=True, eq=False)
class AttributeClients:
    """The arguments of `audit_attribute` for a dataset of people.

    Attributes:
        x: The clients' images `[V, B, *input]` in 0..1.
        y: Their labels `[V, B]`.
        attribute: `[V]`, or `[V, B]` for mixed batches.
        public: Images, labels and attribute of the public people.
        groups: Who is on the clients' images `[V, B]`, and on the public ones.
        classes: The number of classes of the task.
        source: Where they come from, for a report.
    """

    x: Tensor
    y: Tensor
    attribute: Tensor
    public: tuple[Tensor, Tensor, Tensor]
    groups: tuple[Tensor, Tensor]
    classes: int
    source: str


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Images with the label of the task, the value of the attribute, and the person."""

    data: ImageDataset
    labels: Tensor
    values: Tensor
    groups: Tensor
    classes: int
    task: str


def load_attribute_clients(
    data: str,
    attribute: str,
    *,
    root: Path | None = None,
    clients: int = 100,
    batch: int = 8,
    shares: bool = False,
    least_images: int | None = None,
    most_images: int | None = None,
    seed: int = 0,
) -> AttributeClients:
    """Return clients of a dataset who differ in an attribute, and public people, nobody on both sides.

    Half of the people with each value belong to clients, nobody to two; the others are public. Of everybody
    equally many images are used, so that all batches have equally many people. The task is the dataset's own
    label. It is the person too, as in LFW, unless the attribute `people` says who an image is of.
    For the attribute "person" the task is gender, the attribute is whether images are of the person with most
    of them or of others of the same gender, and that person's images are divided between clients and public
    ones.

    Args:
        data: A dataset with that attribute, such as `lfw`, or an `.npz` of your own with an array of it.
        attribute: `gender` (1 for a woman), another attribute of the dataset with values 0 and 1, or
            `person`.
        root: A folder with the dataset's files.
        clients: The most clients; as many with each value, unless batches are mixed.
        batch: Images of each.
        shares: Whether batches are mixed.
        least_images: Only people with at least so many images; 5 by default. For `person` the batch size, so
            that every client has one person's images: else one face or many would tell clients apart.
        most_images: Only people with at most so many images; any number by default.
        seed: Seed of all choices.

    Returns:
        Images, labels and attributes.

    Raises:
        DataError: The dataset has no such attribute, or too few people for two clients with each value.
        SettingError: A setting is out of range.
    """
    checks.integer("clients", clients, 4)
    checks.integer("batch", batch, 1)
    loaded = load_data(data, root=root)
    is_person = attribute == PERSON
    least = least_images if least_images is not None else batch if is_person else _LEAST_IMAGES
    people = frequent_classes(_by_person(loaded), least, most_images)
    labelled = _person_of(people) if is_person else _attribute_of(people, attribute, least, seed)
    if _TASK in labelled.data.attributes and not is_person:
        task = f"one of {loaded.classes} classes"
        labels = labelled.data.attribute(_TASK)
        labelled = replace(labelled, labels=labels, classes=loaded.classes, task=task)
    is_private = _half_of_people(labelled, seed)
    own = torch.where(is_private, labelled.values, -1)
    if shares:
        rows = batches_of_mixed_values(own, labelled.groups, batch, seed=seed)[:clients]
        enough = len(rows) >= 2
        values = labelled.values[rows]
    else:
        rows, values = batches_of_one_value(own, labelled.groups, batch, seed=seed)
        # Equally many of either value, each in the random order.
        fewest = min(clients // 2, *(int((values == value).sum()) for value in (0, 1)))
        enough = fewest >= 2
        kept = torch.cat([(values == value).nonzero()[:fewest, 0] for value in (0, 1)])
        rows, values = rows[kept], values[kept]
    if not enough:
        expected = f"a batch that leaves two clients with each value among {int(is_private.sum())} images"
        raise DataError(field="batch", value=batch, expected=expected)
    public = (~is_private & (labelled.values >= 0)).nonzero()[:, 0]
    images = labelled.data.images
    return AttributeClients(
        images[rows].float().div_(255),
        labelled.labels[rows],
        values,
        (images[public].float().div_(255), labelled.labels[public], labelled.values[public]),
        (labelled.groups[rows], labelled.groups[public]),
        labelled.classes,
        f"{loaded.name}, task {labelled.task}, {len(rows)} clients, {len(public):,} public images",
    )


def _by_person(data: ImageDataset) -> ImageDataset:
    """The same images, with people as their classes; the label of another task becomes an attribute."""
    if PEOPLE not in data.attributes:
        return data
    known = data.subset(data.attribute(PEOPLE) >= 0)
    people, labels = torch.unique(known.attribute(PEOPLE), return_inverse=True)
    attributes = {name: values for name, values in known.attributes.items() if name != PEOPLE}
    attributes[_TASK] = known.labels
    return ImageDataset(known.images, labels, len(people), known.name, known.split, (), attributes)


def _attribute_of(people: ImageDataset, attribute: str, least: int, seed: int) -> _Labelled:
    """The dataset's own task, and one of its attributes; of everybody as many images where it is known."""
    names = [name for name in people.attributes if name != _TASK]
    if names and attribute not in names:
        expected = f"one of {', '.join([*names, *([PERSON] if _GENDER in names else [])])}"
        raise DataError(field="attribute", value=attribute, expected=expected)
    known = frequent_classes(people.subset(people.attribute(attribute) >= 0), least)
    # Else the number of people in a batch, which its labels show, would tell the values apart.
    known = limit_per_class(known, least, seed=seed)
    values = known.attribute(attribute)
    if attribute == _GENDER:
        values = (values == _WOMAN).long()
    if not set(values.tolist()) <= {0, 1}:
        raise DataError(field="attribute", value=attribute, expected="one with the values 0 and 1")
    task = f"one of {known.classes} people"
    return _Labelled(known, known.labels, values, known.labels, known.classes, task)


def _person_of(people: ImageDataset) -> _Labelled:
    """The task gender, and the attribute "is this the person with most images" among the same gender."""
    gender = people.attribute(_GENDER)
    known = people.subset(gender >= 0)
    gender = known.attribute(_GENDER)
    person = int(known.labels.bincount().argmax())
    is_person = known.labels == person
    own_gender = gender[is_person][0]
    values = torch.where(gender == own_gender, is_person.long(), -1)
    # Each image of that person is a group: they are on both sides, and in many clients.
    groups = torch.where(is_person, known.classes + torch.arange(len(known)), known.labels)
    return _Labelled(known, gender, values, groups, 2, "gender")


def _half_of_people(labelled: _Labelled, seed: int) -> Tensor:
    """Which images belong to clients: those of half of the groups with each value."""
    generator = torch.Generator().manual_seed(checks.integer("seed", seed, 0, 2**32 - 1))
    is_private = torch.zeros(len(labelled.values), dtype=torch.bool)
    for value in (0, 1):
        groups = torch.tensor(sorted(set(labelled.groups[labelled.values == value].tolist())))
        order = groups[torch.randperm(len(groups), generator=generator)]
        is_private |= torch.isin(labelled.groups, order[: len(order) // 2])
    return is_private & (labelled.values >= 0)
