"""The images of a membership audit: members, non-members with the same labels, and public images."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.audit.public_images import are_others
from refiner.audit.user_images import LabelledImages
from refiner.audit.victims import load_source
from refiner.data import load_data
from refiner.data.frequent_classes import frequent_classes
from refiner.errors import DataError
from refiner.inference.label_pairs import pair_by_label

# Images that are read for one candidate: some classes have an odd number, and many people one image.
_SPARE_SHARE, _SPARE = 1.6, 20
# Of most people in LFW there is one image, which has no non-member of the same class.
_LEAST_IMAGES = {"lfw": 5}


@dataclass(frozen=True, eq=False)
class MembershipImages:
    """Clients' data, as many non-members with the same labels, and public images."""

    x: Tensor
    """The members `[V, B, C, H, W]` in 0..1."""
    non_members: Tensor
    """Of the same shape."""
    y: Tensor
    """The labels `[V, B]` of both."""
    public: tuple[Tensor, Tensor] | None
    """Images `[N, C, H, W]` and labels `[N]` that are no candidates; None if the source has none."""
    classes: int
    source: str

    def to(self, device: torch.device) -> "MembershipImages":
        """The same on a device; public images stay where they are, since there may be many."""
        moved = {name: getattr(self, name).to(device) for name in ("x", "non_members", "y")}
        return replace(self, **moved)


def load_membership_images(
    data: str | None = None,
    *,
    root: Path | None = None,
    victims: int = 16,
    batch: int = 1,
    size: int | None = None,
    classes: int | None = None,
    seed: int = 0,
    public_images: int = 3000,
    least_images: int | None = None,
) -> MembershipImages:
    """Return members and non-members of one source, which can be told apart by nothing but training.

    Args:
        data: As for `load_victims`; candidates of CIFAR-10 are its training images from 40,000 on.
        root: As for `load_victims`.
        victims: Number of clients.
        batch: Members of each client; as many are its non-members.
        size: As for `load_victims`.
        classes: As for `load_victims`.
        seed: Seed of the division into members and non-members.
        public_images: The most public images, as for `load_victims`.
        least_images: Only classes with so many images, of a dataset with one split such as `lfw`, whose
            default is 5.

    Returns:
        The images.

    Raises:
        DataError: The data can't be read, have no labels, or too few images of the same class.

    >>> images = load_membership_images(victims=4, batch=8, public_images=100)
    >>> images.x.shape, images.non_members.shape, len(images.public[1])
    (torch.Size([4, 8, 3, 32, 32]), torch.Size([4, 8, 3, 32, 32]), 100)
    """
    needed = 2 * checks.integer("victims", victims, 1) * checks.integer("batch", batch, 1)
    count = round(_SPARE_SHARE * needed) + _SPARE
    checks.integer("public_images", public_images, 0)
    least = _LEAST_IMAGES.get(data or "") if least_images is None else least_images
    if least is None:
        source, _, pool = load_source(data, root, count, 0, public_images, size, seed, classes)
    else:
        if size is not None:
            raise DataError(field="size", value=size, problem="can be given only with your own images")
        source, pool = _of_frequent_classes(data, root, public_images, least, seed)
        source, count = source if classes is None else source.with_classes(classes), len(source.labels)
    if not source.labelled:
        expected = "images of two classes or more, by sub-folder or with labels in the file"
        raise DataError(field="data", value=data, expected=expected)
    images, labels = source.images[:count], source.labels[:count]
    first = _first_of_copies(images)
    x, others, y = pair_by_label(images[first], labels[first], victims, batch, seed=seed)
    is_other = are_others(pool[0].to(images.dtype), images)
    public = (pool[0][is_other], pool[1][is_other])
    return MembershipImages(x, others, y, public if len(public[1]) else None, source.classes, source.source)


def _of_frequent_classes(
    data: str | None, root: Path | None, public_images: int, least: int, seed: int
) -> tuple[LabelledImages, tuple[Tensor, Tensor]]:
    """Candidates from classes with at least `least` images, as many of each, and others to learn from."""
    if data not in _LEAST_IMAGES:
        problem = f"can be given only with {' or '.join(_LEAST_IMAGES)}"
        raise DataError(field="least_images", value=least, problem=problem)
    everybody = load_data(data, "all", root=root)
    checks.integer("least_images", least, 3, int(everybody.labels.bincount().max()))
    people = frequent_classes(everybody, least)
    generator = torch.Generator().manual_seed(seed)
    # Pairs of every class; what is left of each is public.
    candidates, others = [], []
    for number in range(people.classes):
        rows = (people.labels == number).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        paired = (least - 1) // 2 * 2
        candidates.append(rows[:paired])
        others.append(rows[paired:])
    public = torch.cat(others)
    public = public[torch.randperm(len(public), generator=generator)[:public_images]]
    taken = torch.cat(candidates)
    names = [f"image {number}" for number in taken.tolist()]
    source = f"{data}, people with at least {least} images"
    return (
        LabelledImages(
            people.images[taken].float() / 255, people.labels[taken], names, people.classes, source
        ),
        (people.images[public].float() / 255, people.labels[public]),
    )


def _first_of_copies(images: Tensor) -> Tensor:
    """The numbers of the images without those that are copies of an earlier one."""
    seen: set[bytes] = set()
    kept = []
    for number, image in enumerate(images.numpy()):
        content = image.tobytes()
        if content not in seen:
            seen.add(content)
            kept.append(number)
    return torch.tensor(kept)
