"""Public images: for the blind guess, and as candidates among which an attacker seeks the original."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics.image_checks import check_images

# So many images to learn from are candidates at most.
_MOST_OF_POOL = 1000


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Images that are not victims, and where they come from."""

    images: Tensor | None
    """For the mean image of the blind guess; None if there are none of the victims' shape."""
    like_victims: bool
    """Whether they are of the same dataset as the victims; only then they serve as candidates."""
    source: str

    @property
    def candidates(self) -> Tensor | None:
        """The images among which, besides the victims, the original is sought."""
        return self.images if self.like_victims else None


def choose_public_images(
    original: Tensor, public: Tensor | None = None, pool: Tensor | None = None
) -> PublicImages:
    """Return images like the victims: given ones, the rest of the bundled sample, or those to learn from.

    The bundled sample is CIFAR-10: among its images a victim of another dataset would be too easy to
    identify, so they are candidates only if all victims are from the sample. Its mean image is a valid
    blind guess for any victims.

    Args:
        original: The victims' images `[N, C, H, W]`.
        public: Images of the same kind; victims among them are left out.
        pool: Images that an attacker learns from. The first 1,000 that are no victims are taken if there is
            nothing else to take; those of another shape never are.

    Returns:
        The images. If they are not like the victims, the victims themselves are the only candidates.

    Raises:
        DataError: `public` has another shape, or contains nothing but victims.

    >>> victims = load_sample().images[:16]
    >>> public = choose_public_images(victims)
    >>> len(public.images), public.like_victims
    (184, True)
    >>> choose_public_images(victims[:, :, :28, :28]).images is None
    True
    """
    if public is not None:
        public = check_images("public", public)
        if public.shape[1:] != original.shape[1:]:
            raise DataError(
                field="public",
                value=public,
                expected=f"images of the victims' shape {list(original.shape[1:])}",
            )
        rest = without_victims(public.to(original), original)
        if not len(rest):
            raise DataError(
                "public: contains only victims, expected other images",
                field="public",
                value=public,
                expected="images that are not victims",
            )
        return PublicImages(rest, True, f"{len(rest)} images as given")
    sample = load_sample().images
    rest = sample[:0]
    if sample.shape[1:] == original.shape[1:]:
        rest = without_victims(sample.to(original), original)
        if len(sample) - len(rest) == len(original) and len(rest):
            return PublicImages(rest, True, f"{len(rest)} images of the bundled sample")
    if pool is not None and pool.shape[1:] == original.shape[1:]:
        others = without_victims(pool.to(original.dtype), original)[:_MOST_OF_POOL].to(original)
        if len(others):
            return PublicImages(others, True, f"{len(others)} of the images to learn from")
    return PublicImages(
        rest if len(rest) else None,
        False,
        f"{len(rest)} images of the bundled sample" if len(rest) else "none",
    )


def without_victims(images: Tensor, victims: Tensor) -> Tensor:
    """Return those of `images [N, …]` that are not among `victims`, which must have the same dtype.

    >>> without_victims(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    tensor([[0.]])
    """
    return images[are_others(images, victims)]


def are_others(images: Tensor, victims: Tensor) -> Tensor:
    """Return a mask `[N]` of those of `images [N, …]` that are not among `victims`, of the same dtype.

    Values in 0..1 are compared at 256 levels: the same byte can become floats that differ in their last bit.

    >>> are_others(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    tensor([ True, False])
    >>> bytes_ = torch.arange(256.0).view(1, 256)
    >>> are_others(bytes_ * (1 / 255), bytes_ / 255)
    tensor([False])
    """
    if images.is_floating_point() and all(bool(((t >= 0) & (t <= 1)).all()) for t in (images, victims)):
        images, victims = ((t.float() * 255).round().to(torch.uint8) for t in (images, victims))
    victim_bytes = {victim.tobytes() for victim in victims.cpu().numpy()}
    is_other = [image.tobytes() not in victim_bytes for image in images.cpu().numpy()]
    return torch.tensor(is_other, dtype=torch.bool, device=images.device)
