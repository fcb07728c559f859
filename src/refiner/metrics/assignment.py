"""Which reconstruction belongs to which original: a gradient does not tell the order of its batch."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from refiner.errors import DataError
from refiner.metrics.pairs import check_pair


def assign(reconstructed: Tensor, original: Tensor) -> Tensor:
    """`reconstructed [V, B, C, H, W]` in the order of each victim's originals that has the least summed MSE.

    >>> batch = torch.rand(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> torch.equal(assign(batch.flip(1), batch), batch)
    True
    """
    order = best_order(reconstructed, original)
    return torch.stack([images[chosen] for images, chosen in zip(reconstructed, order, strict=True)])


def best_order(reconstructed: Tensor, original: Tensor) -> Tensor:
    """`[V, B]`: for each original the place of its reconstruction, such that the summed MSE is least.

    >>> batch = torch.rand(1, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> best_order(batch[:, [2, 0, 1]], batch)
    tensor([[1, 2, 0]])
    """
    for name, images in (("reconstructed", reconstructed), ("original", original)):
        if not isinstance(images, Tensor) or images.ndim != 5:
            found = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise DataError(f"{name}: shape {found}, expected [V, B, C, H, W]")
    if reconstructed.shape != original.shape:
        raise DataError(
            f"reconstructed: shape {list(reconstructed.shape)}, "
            f"expected {list(original.shape)} as the originals have"
        )
    victims, batch = original.shape[:2]
    checked = check_pair(reconstructed.flatten(0, 1), original.flatten(0, 1))
    pairs = zip(*(images.reshape(victims, batch, -1) for images in checked), strict=True)
    orders = [hungarian(_squared_distances(wanted, found).cpu().numpy()) for found, wanted in pairs]
    return torch.from_numpy(np.stack(orders)).to(original.device)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """`[n, m]` in float64, where the expanded square keeps nine digits."""
    a, b = a.double(), b.double()
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.mT


def hungarian(cost: NDArray[Any]) -> NDArray[np.int64]:
    """For each row of a square matrix its column, each column once, such that the sum is least. O(n³), exact.

    Rows join one after another; each looks for the cheapest chain of exchanges that frees a column for it,
    with prices that keep every reduced cost ≥ 0 (Kuhn, Munkres; in the form of Jonker and Volgenant).

    >>> hungarian(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]))
    array([1, 0, 2])
    """
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1] or not np.isfinite(cost).all():
        raise DataError(f"cost: shape {list(cost.shape)}, expected a square matrix of finite numbers")
    count = len(cost)
    # Column `count` is a station outside the matrix: the row that is joining stands there.
    row_price, column_price = np.zeros(count), np.zeros(count + 1)
    row_of = np.full(count + 1, -1)
    for row in range(count):
        row_of[count] = row
        column = count
        slack, came_from = np.full(count, np.inf), np.full(count, count)
        seen = np.zeros(count + 1, dtype=bool)
        while row_of[column] >= 0:
            seen[column] = True
            reduced = cost[row_of[column]] - row_price[row_of[column]] - column_price[:count]
            shorter = ~seen[:count] & (reduced < slack)
            slack[shorter], came_from[shorter] = reduced[shorter], column
            following = int(np.where(seen[:count], np.inf, slack).argmin())
            step = slack[following]
            row_price[row_of[seen]] += step
            column_price[seen] -= step
            slack[~seen[:count]] -= step
            column = following
        while column != count:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    found = np.empty(count, dtype=np.int64)
    found[row_of[:count]] = np.arange(count)
    return found
