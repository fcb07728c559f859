"""Linear equations with noise of unknown size in the matrix and the right-hand side, for many victims."""

import math

import torch
from torch import Tensor

# The penalties that are compared, relative to the largest singular value.
_PENALTIES = torch.logspace(-9, 1, 41, dtype=torch.float64)
# The penalty where there are no more equations than unknowns, so that nothing shows the noise: smaller
# singular values are rounding errors of gradients in float32.
_ROUNDING = torch.tensor([1e-6], dtype=torch.float64)


def solve_noisy(matrix: Tensor, target: Tensor, guess: Tensor, mean_square: float) -> Tensor:
    """Return the solutions X of A X = target, exact without noise; what noise hides is as in `guess`.

    The noise is estimated from the equations themselves. Singular values of A that noise alone would have
    are dropped, the others are reduced by its part, and the rest is ridge regression towards `guess`, with
    the penalty that generalised cross-validation chooses for each victim (Golub, Heath and Wahba,
    Technometrics 1979). Least squares would pull X towards zero instead: noise in A attenuates it.

    Args:
        matrix: A, float64 `[V, equations, unknowns]`.
        target: The right-hand sides, float64 `[V, equations, columns]`.
        guess: X where nothing is known, `[unknowns, columns]`.
        mean_square: About the mean square of X's entries.

    Returns:
        `[V, unknowns, columns]`; `guess` where A is zero.

    >>> matrix, x = torch.rand(2, 9, 3, dtype=torch.float64), torch.rand(2, 3, 4, dtype=torch.float64)
    >>> found = solve_noisy(matrix, matrix @ x, torch.zeros(3, 4, dtype=torch.float64), mean_square=0.3)
    >>> torch.allclose(found, x)
    True
    """
    equations, unknowns = matrix.shape[1:]
    free = max(equations - unknowns, 0)
    left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.mT @ target
    outside = (target - left @ inside).square().sum((1, 2))
    noise = _noise_variance(matrix, target, outside, mean_square)[:, None]
    # The largest singular value of noise alone (Marchenko and Pastur).
    is_signal = singular.square() > noise * (math.sqrt(equations) + math.sqrt(unknowns)) ** 2
    without_noise = torch.where(is_signal, singular - equations * noise / singular, singular)
    deviation = inside - without_noise[..., None] * (right @ guess)
    compared = (_PENALTIES if free else _ROUNDING).to(matrix)
    penalties = (compared[:, None] * singular[:, 0]).square()[..., None]
    unexplained = torch.where(is_signal, penalties / (singular.square() + penalties), 1.0)
    residuals = outside + (unexplained.square() * deviation.square().sum(2)).sum(2)
    best = (residuals / (free + unexplained.sum(2)).square()).argmin(0)
    penalty = penalties[best, torch.arange(len(matrix), device=matrix.device)]
    factor = torch.where(is_signal, singular / (singular.square() + penalty), 0.0)
    solution: Tensor = guess + right.mT @ (factor[..., None] * deviation)
    return solution


def _noise_variance(matrix: Tensor, target: Tensor, outside: Tensor, mean_square: float) -> Tensor:
    """The variance of the noise in A's entries `[V]`; 0 where there are no more equations than unknowns.

    Without noise the columns of [A, target] have the rank of A: what is beyond it is noise, if A and target
    have the same. A target outside of A's span shows noise in A alone, if A has more. The larger one counts.
    """
    equations, unknowns = matrix.shape[1:]
    if equations <= unknowns:
        return torch.zeros_like(outside)
    count = (equations - unknowns) * target.shape[2]
    singular: Tensor = torch.linalg.svdvals(torch.cat([matrix, target], dim=2))
    in_both = singular[:, unknowns:].square().sum(1) / count
    return torch.maximum(in_both, outside / count / (1 + unknowns * mean_square))
