"""What the points of a search have taught: by which moves of the data the gradient changed, and how."""

import torch
from torch import Tensor

from refiner.defenses.refine.problem import wide
from refiner.defenses.refine.utility import TINY, Utility

# What is new in a change must have this share of its square and of the difference's, or it is rounding.
_NEW = 1e-6


class Secants:
    """Moves `[V, B, ...]` and the changes `[V, N]` of the gradient that they made, at right angles in UM.

    A straight problem is solved by as many moves as it has dimensions:

    >>> um = Utility(target=torch.zeros(1, 2), weight=torch.ones(1, 2), scale=torch.ones(1))
    >>> known = Secants(um)
    >>> for x in torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]], [[1.0, 1.0]]]):
    ...     known.learn(x, 10 * x)
    >>> move, left = known.undo()
    >>> bool((move + 1).abs().max() < 1e-5), bool(left.abs().max() < 1e-5)
    (True, True)
    """

    def __init__(self, utility: Utility) -> None:
        self.rate: Tensor | None = None
        """How long a step down UM's slope should be, `[V]`, as the first one showed and each move since."""
        self._utility = utility
        self._last: tuple[Tensor, Tensor] | None = None
        self._moves: list[Tensor] = []
        self._changes: list[Tensor] = []

    def learn(self, x: Tensor, difference: Tensor) -> None:
        """The next point, and the gradient's difference to the real one there."""
        last, self._last = self._last, (x, difference)
        if last is None:
            return
        move, change = x - last[0], difference - last[1]
        dot = self._utility.dot
        whole, suits = dot(change, change), move.square().flatten(1).sum(1)
        for known, made in zip(self._moves, self._changes, strict=True):
            share = dot(change, made)
            move, change = move - wide(share, move) * known, change - share[:, None] * made
        rest = dot(change, change)
        new = rest > _NEW * whole.maximum(dot(difference, difference))
        # Zero, and so without a say, where nothing is new.
        size = torch.where(new, rest, torch.inf).rsqrt()
        self._moves.append(wide(size, move) * move)
        self._changes.append(size[:, None] * change)
        if self.rate is not None:
            # The geometric mean with the one that would have suited this move.
            self.rate = torch.where(new, (self.rate * suits / whole.clamp_min(TINY)).sqrt(), self.rate)

    def undo(self) -> tuple[Tensor, Tensor]:
        """The move that takes as much as can be from the last point's difference, and what is left of it."""
        assert self._last is not None
        x, left = self._last
        back = torch.zeros_like(x)
        for known, made in zip(self._moves, self._changes, strict=True):
            share = self._utility.dot(left, made)
            left, back = left - share[:, None] * made, back - wide(share, back) * known
        return back, left
