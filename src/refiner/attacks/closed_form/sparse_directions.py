"""Directions in which a matrix has many zeros: how a batch is separated that a ReLU made sparse."""

from collections.abc import Collection

import torch
from torch import Tensor

# Two numbers are equal if they differ by less than this; rows and directions have length 1.
_ZERO = 1e-4
# Rows that are smaller than this part of the largest are zero for every direction.
_EMPTY = 1e-6
# What counts as small at first, in terms of the root mean square, how it decreases, and how often.
_FIRST_SMOOTHING, _DECAY, _LAST_SMOOTHING, _ITERATIONS = 1.0, 0.9, 1e-4, 60
# A direction is new if it is so far from the span of the others.
_INDEPENDENT = 1e-3
# A direction is trusted with this part of the zeros that the best half has.
_TRUSTED = 0.9
# The part of the trusted directions from which a search keeps away: one of them may be wrong.
_AVOIDED = 0.8
# Every so many searches nothing is avoided.
_WITHOUT_PREJUDICE = 3
# How many directions are kept, and how many of these are purified, in terms of their length.
_KEPT, _PURIFIED, _SUBTRACTED = 16, 4, 2


class SparseDirections:
    """The unit vectors q found so far for which `rows` q has the most zeros, such vectors first.

    If `rows` = Δ Q⁻¹ for a sparse Δ, these are the columns of Q. A search starts at random rows, which are
    close to the columns they are large in, and descends Σ log |rows q| by reweighted least squares, where
    small values count as zero only towards the end. It keeps away from columns that were found before. Most
    other minima are sums of two columns; subtracting one leaves the other. Every third search starts at
    random vectors and keeps away from nothing, in case what was found is wrong.

    Args:
        rows: A matrix `[M, B]` with B orthonormal columns, in float64.
        generator: Draws the starts.

    >>> delta = torch.randn(200, 3, dtype=torch.float64).relu()
    >>> q, mixed = torch.linalg.qr(delta)
    >>> found = SparseDirections(q, torch.Generator().manual_seed(0))
    >>> found.search(starts=20)
    >>> columns = mixed / mixed.norm(dim=0)
    >>> bool(((found.vectors[:3] @ columns).abs().amax(0) > 0.999).all())
    True
    """

    def __init__(self, rows: Tensor, generator: torch.Generator) -> None:
        length = rows.norm(dim=1, keepdim=True)
        filled = length[:, 0] > _EMPTY * length.amax()
        self.rows = (rows / length)[filled]
        self.generator = generator
        self.searches = 0
        self.vectors = rows.new_empty(0, rows.shape[1])
        self.zeros = torch.empty(0, dtype=torch.int64, device=rows.device)

    @property
    def samples(self) -> int:
        """B, the length of a direction."""
        return int(self.rows.shape[1])

    def search(self, starts: int) -> None:
        """Add the directions found from random starts.

        Args:
            starts: How many.
        """
        if self.searches and self.searches % _WITHOUT_PREJUDICE == 0:
            complement = torch.eye(self.samples).to(self.rows)
            start = torch.randn(starts, self.samples, generator=self.generator, dtype=self.rows.dtype)
        else:
            complement = self._complement()
            start = self.rows.cpu()[torch.randint(len(self.rows), (starts,), generator=self.generator)]
        self.searches += 1
        self._add(self._descend(start.to(self.rows) @ complement @ complement.T, complement))
        self._add(self._purified())

    def independent(self, count: int, without: Collection[int] = (), least: float = 0) -> list[int]:
        """The numbers of the first directions that are linearly independent of those before them.

        Args:
            count: The most numbers to return.
            without: Numbers to leave out.
            least: The fewest zeros that count.

        Returns:
            At most `count` numbers, ascending.
        """
        chosen: list[int] = []
        basis = self.vectors.new_empty(0, self.samples)
        for number, vector in enumerate(self.vectors[: int((self.zeros >= least).sum())]):
            if len(chosen) == count:
                break
            rest = vector - basis.T @ (basis @ vector)
            if number not in without and float(rest.norm()) > _INDEPENDENT:
                basis = torch.cat([basis, (rest / rest.norm())[None]])
                chosen.append(number)
        return chosen

    def _complement(self) -> Tensor:
        """An orthonormal basis `[B, C]` of what is orthogonal to most of the trusted directions."""
        avoided = self.vectors[:0]
        if len(self.vectors):
            median = float(self.zeros[: max(1, self.samples // 2)].double().median())
            trusted = self.independent(self.samples - 1, least=_TRUSTED * median)
            drawn = torch.rand(len(trusted), generator=self.generator) < _AVOIDED
            avoided = self.vectors[trusted][drawn.to(self.vectors.device)]
        basis: Tensor = torch.linalg.qr(avoided.T, mode="complete").Q
        return basis[:, len(avoided) :]

    def _descend(self, start: Tensor, complement: Tensor) -> Tensor:
        """Minima near `start` of Σ log |rows q| for vectors q with a part of length 1 in the complement."""
        vectors: Tensor = start / start.norm(dim=1, keepdim=True)
        products = (self.rows[:, :, None] * self.rows[:, None]).flatten(1)
        ridge = 1e-13 * torch.eye(self.samples).to(self.rows)
        smoothing = _FIRST_SMOOTHING
        for _ in range(_ITERATIONS):
            values = (vectors @ self.rows.T).square()
            weights = 1 / (values + smoothing**2 * values.mean(1, keepdim=True))
            matrices = (weights @ products).view(-1, self.samples, self.samples)
            matrices = matrices / matrices.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] + ridge
            inverse = torch.linalg.solve(matrices, complement.expand(len(matrices), -1, -1))
            inside: Tensor = torch.linalg.eigh(complement.T @ inverse).eigenvectors[:, :, -1:]
            vectors = (inverse @ inside)[:, :, 0]
            vectors = vectors / vectors.norm(dim=1, keepdim=True)
            smoothing = max(_DECAY * smoothing, _LAST_SMOOTHING)
        return vectors

    def _add(self, vectors: Tensor) -> None:
        """Keep the directions with the most zeros, each once."""
        vectors = torch.cat([self.vectors, vectors])
        zeros = ((vectors @ self.rows.T).abs() < _ZERO).sum(1)
        order = zeros.argsort(descending=True, stable=True)
        vectors, zeros = vectors[order], zeros[order]
        kept = ~((vectors @ vectors.T).abs() > 1 - 1e-6).tril(-1).any(1)
        most = _KEPT * self.samples
        self.vectors, self.zeros = vectors[kept][:most], zeros[kept][:most]

    def _purified(self) -> Tensor:
        """The best directions, less that multiple of another which leaves the most zeros."""
        others = self.vectors[: _SUBTRACTED * self.samples]
        of_others = others @ self.rows.T
        filled = of_others.abs() > 10 * _ZERO
        purified = []
        for vector in self.vectors[: _PURIFIED * self.samples]:
            values = self.rows @ vector
            empty = values.abs() < _ZERO
            # v − c q is zero in a row where v / q = c: the most frequent ratio makes the most zeros.
            ratios = torch.where(filled & ~empty, values / of_others, torch.inf).sort(dim=1).values
            count, first = _longest_run(ratios)
            gain = count - (filled & empty).sum(1)
            gain[(others @ vector).abs() > 1 - 1e-6] = 0
            best = int(gain.argmax())
            if gain[best] > 0:
                rest = vector - ratios[best, first[best]] * others[best]
                purified.append(rest / rest.norm())
        return torch.stack(purified) if purified else self.vectors[:0]


def _longest_run(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """How many finite values of each row agree up to rounding at most, and where the first of them is."""
    width = 1e-5 * (ascending.abs() + 1e-3)
    end = torch.searchsorted(ascending, ascending + width)
    length = end - torch.arange(ascending.shape[1], device=ascending.device)
    longest = length.masked_fill(~ascending.isfinite(), 0).max(1)
    return longest.values, longest.indices
