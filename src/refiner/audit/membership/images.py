"""The images of a membership audit: members, non-members with the same labels, and public images."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.audit.public_images import are_others
from refiner.audit.victims import load_source
from refiner.errors import DataError
from refiner.inference.label_pairs import pair_by_label

# Images that are read for one candidate: some classes have an odd number, and many people one image.
_SPARE_SHARE, _SPARE = 1.6, 20


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
    source, _, pool = load_source(
        data, root, count, 0, checks.integer("public_images", public_images, 0), size, seed, classes
    )
    if not source.labelled:
        expected = "images of two classes or more, by sub-folder or with labels in the file"
        raise DataError(field="data", value=data, expected=expected)
    images, labels = source.images[:count], source.labels[:count]
    first = _first_of_copies(images)
    x, others, y = pair_by_label(images[first], labels[first], victims, batch, seed=seed)
    is_other = are_others(pool[0].to(images.dtype), images)
    public = (pool[0][is_other], pool[1][is_other])
    return MembershipImages(x, others, y, public if len(public[1]) else None, source.classes, source.source)


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
