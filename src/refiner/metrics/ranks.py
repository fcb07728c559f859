"""Ranks: the place of each observation's own candidate among all candidates."""

from dataclasses import dataclass

from torch import Tensor

# Similarities that differ by less are equal: products in float64 differ by rounding.
_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Identification:
    """The rank of each reconstruction's own original among the candidates."""

    by: str
    """How candidates were ranked: "pixels", "lpips" or "likelihood"."""
    ranks: Tensor
    """`[N]`, 1 for the closest candidate; equally close candidates share the mean of their ranks."""
    candidates: int

    @property
    def top1(self) -> float:
        """The fraction of reconstructions whose own original is the closest; by chance 1 / candidates."""
        return float((self.ranks == 1).double().mean())

    @property
    def p_values(self) -> Tensor:
        """Rank / candidates, `[N]`: the probability that an unrelated image ranks as well or better."""
        return self.ranks / self.candidates


def ranks_of_own(similarity: Tensor, begin: int = 0) -> Tensor:
    """Return the rank of every row's own candidate, `[n]`.

    Args:
        similarity: `[n, M]` in float64, higher for a closer candidate.
        begin: The column that the first row's own candidate is in; the next row's is in the next column.

    Returns:
        1 for the closest; equally close candidates share the mean of their ranks.

    >>> import torch
    >>> ranks_of_own(torch.tensor([[0.2, 0.9, 0.1], [0.5, 0.5, 0.1]], dtype=torch.float64)).tolist()
    [2.0, 1.5]
    """
    own = similarity.diagonal(begin)[:, None]
    closer = (similarity > own + _TIE).sum(1)
    equal = ((similarity - own).abs() <= _TIE).sum(1) - 1
    return 1 + closer + equal / 2
