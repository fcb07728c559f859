"""Which reconstruction belongs to which original: a gradient does not reveal the order of its batch."""

import numpy as np
import torch
from torch import Tensor

from refiner.errors import DataError
from refiner.metrics.image_checks import check_pair, check_same_shape


def assign(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the reconstructions of each victim in the order of its originals.

    Args:
        reconstructed: `[V, B, C, H, W]` in 0..1, each batch in any order.
        original: `[V, B, C, H, W]` in 0..1.

    Returns:
        `[V, B, C, H, W]`: of all orders of each batch the one with the lowest sum of MSEs.

    >>> batch = torch.rand(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> torch.equal(assign(batch.flip(1), batch), batch)
    True
    """
    orders = best_order(reconstructed, original)
    return torch.stack([batch[order] for batch, order in zip(reconstructed, orders, strict=True)])


def best_order(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return for each original the index of its reconstruction, such that the sum of MSEs is lowest.

    Args:
        reconstructed: `[V, B, C, H, W]` in 0..1, each batch in any order.
        original: `[V, B, C, H, W]` in 0..1.

    Returns:
        Indices `[V, B]` into each batch of `reconstructed`.

    Raises:
        DataError: The shapes differ, or the images are invalid.

    >>> batch = torch.rand(1, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> best_order(batch[:, [2, 0, 1]], batch)
    tensor([[1, 2, 0]])
    """
    # Imported here: it takes longer than the rest of this package, and most commands don't need it.
    from scipy.optimize import linear_sum_assignment

    for name, images in (("reconstructed", reconstructed), ("original", original)):
        if not isinstance(images, Tensor) or images.ndim != 5:
            actual = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise DataError(
                f"{name}: shape {actual}, expected [V, B, C, H, W]",
                field=name,
                value=actual,
                expected="[V, B, C, H, W]",
            )
    check_same_shape("reconstructed", reconstructed, original)
    victims, batch = original.shape[:2]
    checked = check_pair(reconstructed.flatten(0, 1), original.flatten(0, 1))
    pairs = zip(*(images.reshape(victims, batch, -1) for images in checked), strict=True)
    # Rows are originals; SciPy returns the column of each row, rows ascending.
    orders = [linear_sum_assignment(_squared_distances(b, a).cpu().numpy())[1] for a, b in pairs]
    return torch.from_numpy(np.stack(orders)).to(original.device)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """`[n, m]` in float64, in which the expanded square has nine correct digits."""
    a, b = a.double(), b.double()
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.mT
