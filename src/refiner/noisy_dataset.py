"""`NoisyDataset`: augmented images that carry the noise of their original."""

import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from refiner.core.input_checks import describe_tensor
from refiner.defenses import Refiner
from refiner.errors import DataError

Transform = Callable[[Tensor], Tensor]


class ImagePairs(Protocol):
    """Pairs of an image and its label by index: a list, or a dataset that knows its length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Tensor, Any]: ...


class NoisyDataset(Dataset[tuple[Tensor, Tensor, Any]]):
    """Adds Refiner's noise to an image before it is augmented, so that all its copies share one noise.

    A crop or a mirrored copy is another image to `Refiner` and would get noise of its own: an attacker who
    sees many copies could average the noises away. Here the noise belongs to the original and is cropped and
    mirrored with it.

    Args:
        images: Pairs of an image, a float tensor `[C, H, W]` in 0..1, and its label; not augmented.
        defense: The client's `Refiner`, the same object as in `refiner.backward`.
        transform: The augmentation, a function of one image tensor; its random numbers must come from Python,
            NumPy or PyTorch. None for none.

    Returns, by index, the augmented image, the same with noise, and the label. In a `DataLoader` with worker
    processes these must be started by fork, as on Linux: the defence's secret is never pickled.

    Raises:
        DataError: An image has the wrong type, or the transform can't be repeated with the same random
            numbers.

    >>> from refiner import load_sample
    >>> sample, defense = load_sample(), Refiner()
    >>> pairs = list(zip(sample.images, sample.labels, strict=True))
    >>> loader = torch.utils.data.DataLoader(NoisyDataset(pairs, defense, lambda x: x.flip(-1)), batch_size=4)
    >>> x, noisy, y = next(iter(loader))
    >>> torch.allclose(noisy.flip(-1), defense.noisy(sample.images[:4]))
    True
    """

    def __init__(
        self,
        images: ImagePairs,
        defense: Refiner,
        transform: Transform | None = None,
    ) -> None:
        if not isinstance(defense, Refiner):
            raise DataError(field="defense", value=type(defense).__name__, expected="a Refiner")
        self.images, self.defense, self.transform = images, defense, transform
        self._repeatable = transform is None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Any]:
        image, label = self.images[index]
        if not isinstance(image, Tensor) or image.ndim != 3 or not image.is_floating_point():
            shown = describe_tensor(image) if isinstance(image, Tensor) else type(image).__name__
            expected = "a float tensor [C, H, W] in 0..1; convert it before, and augment it in transform"
            raise DataError(field="image", value=shown, expected=expected)
        noisy = self.defense.noisy(image[None])[0]
        if self.transform is None:
            return image, noisy, label
        if not self._repeatable:
            once, again = _same_randomness(self.transform, image, image)
            if not torch.equal(once, again):
                expected = "random numbers of Python, NumPy or PyTorch only, to augment the noise alike"
                raise DataError(field="transform", value=str(self.transform), expected=expected)
            self._repeatable = True
        return *_same_randomness(self.transform, image, noisy), label


def _same_randomness(transform: Transform, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors transformed with the same random numbers."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    one = transform(first)
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(pytorch)
    return one, transform(second)
