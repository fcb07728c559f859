"""Public images: what a blind guess may use, and among what an attacker looks for the original."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics.pairs import check_images


@dataclass(frozen=True, eq=False)
class Public:
    """Images that are no victims, and where they come from."""

    images: Tensor | None
    """For the mean image; None if there are none of that shape."""
    alike: bool
    """Whether they are of the victims' kind: only then a victim is looked for among them."""
    source: str

    @property
    def others(self) -> Tensor | None:
        """Candidates beside the victims."""
        return self.images if self.alike else None


def choose_public(original: Tensor, public: Tensor | None = None) -> Public:
    """`public` without the victims `original [N, C, H, W]`; without it the rest of the bundled sample.

    The sample is CIFAR-10: among its images a victim of another kind would be found too easily, so its
    rest counts as candidates only for victims that are from the sample. Its mean image is a guess like any.

    >>> victims = load_sample().images[:16]
    >>> found = choose_public(victims)
    >>> len(found.images), found.alike, choose_public(victims[:, :, :28, :28]).images is None
    (184, True, True)
    """
    if public is not None:
        public = check_images("public", public)
        if public.shape[1:] != original.shape[1:]:
            raise DataError(
                f"public: images of shape {list(public.shape[1:])}, "
                f"expected {list(original.shape[1:])} as the victims have"
            )
        rest = without(public.to(original), original)
        if not len(rest):
            raise DataError("public: holds nothing but victims, expected other images")
        return Public(rest, True, f"{len(rest)} images as given")
    sample = load_sample().images
    if sample.shape[1:] != original.shape[1:]:
        return Public(None, False, "none")
    rest = without(sample.to(original), original)
    alike = len(sample) - len(rest) == len(original)
    return Public(rest if len(rest) else None, alike, f"{len(rest)} images of the bundled sample")


def without(images: Tensor, victims: Tensor) -> Tensor:
    """Those of `images [N, …]` that are not among `victims`, of the same dtype.

    >>> without(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    tensor([[0.]])
    """
    held = {victim.tobytes() for victim in victims.cpu().numpy()}
    kept = [image.tobytes() not in held for image in images.cpu().numpy()]
    return images[torch.tensor(kept, device=images.device)]
