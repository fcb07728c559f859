"""Ridge regression from running sums, with the penalty chosen on held-out data."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-7, 2))
"""Penalties to try, relative to the variance of a standardised feature."""


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """A fitted linear map: prediction = target_mean + (features − feature_mean) @ coefficients."""

    feature_mean: Tensor
    """`[d]`"""
    target_mean: Tensor
    """`[m]`"""
    coefficients: Tensor
    """`[d, m]`"""
    penalty: float
    """The penalty that was chosen."""
    error: float
    """The mean squared error on the held-out data; not finite if the fit failed."""

    def __call__(self, features: Tensor) -> Tensor:
        """Return the predictions `[n, m]` for features `[n, d]`."""
        return self.target_mean + (features - self.feature_mean) @ self.coefficients


class RidgeSums:
    """The sums of products from which ridge regression is solved; any amount of data in bounded memory.

    Args:
        features: The number of features, d.
        targets: The number of targets, m.
        device: Where the sums are kept.

    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(100, 3, generator=generator)
    >>> y = 5 + x @ torch.tensor([[1.0], [2.0], [-1.0]])
    >>> sums = RidgeSums(3, 1, x.device)
    >>> sums.add(x[:50], y[:50]); sums.add(x[50:90], y[50:90])
    >>> fit = sums.solve(x[90:], y[90:])
    >>> fit.error < 1e-9, fit(torch.zeros(1, 3)).round(decimals=3)
    (True, tensor([[5.]]))
    """

    def __init__(self, features: int, targets: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.count = 0
        # Everything is measured from the first rows' mean: sums of squares around a distant origin cancel.
        self._origin = (zeros(features), zeros(targets))
        self._sums = (zeros(features), zeros(targets))
        self._feature_products = zeros(features, features)
        self._target_products = zeros(features, targets)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add rows.

        Args:
            features: `[n, d]`, finite.
            targets: `[n, m]`.
        """
        if not len(features):
            return
        x, y = features.double(), targets.double()
        if not self.count:
            self._origin = (x.mean(0), y.mean(0))
        x, y = x - self._origin[0], y - self._origin[1]
        self.count += len(x)
        self._sums[0].add_(x.sum(0))
        self._sums[1].add_(y.sum(0))
        self._feature_products.addmm_(x.T, x)
        self._target_products.addmm_(x.T, y)

    def solve(self, features: Tensor, targets: Tensor, penalties: Sequence[float] = PENALTIES) -> RidgeFit:
        """Return the fit whose penalty has the lowest squared error on held-out rows.

        All penalties share one eigendecomposition of the features' correlation matrix.

        Args:
            features: Held-out features `[n, d]`.
            targets: Their targets `[n, m]`.
            penalties: The penalties to try.

        Returns:
            The fit in the dtype of `features`. Its error is not finite if the features have no variance or
            values are not finite: nothing can be learned from them.
        """
        shift, target_shift = (total / max(1, self.count) for total in self._sums)
        covariance = self._feature_products / max(1, self.count) - shift[:, None] * shift
        cross = self._target_products / max(1, self.count) - shift[:, None] * target_shift
        mean, target_mean = self._origin[0] + shift, self._origin[1] + target_shift
        variance = covariance.diagonal().clamp_min(0)
        # A feature that is constant up to rounding carries nothing and would be divided by almost zero.
        varies = variance > 1e-12 * variance.max()
        scale = torch.where(varies, variance.sqrt(), 1)
        factor = varies / scale
        failed = RidgeFit(mean.to(features), target_mean.to(features), cross.to(features), 0.0, torch.inf)
        correlation = factor[:, None] * covariance * factor
        if not bool(varies.any()) or not bool(correlation.isfinite().all()) or not len(features):
            return failed
        eigenvalues, vectors = torch.linalg.eigh(correlation)
        projected = vectors.T @ (factor[:, None] * cross)
        held_out = ((features.double() - mean) * factor) @ vectors
        eigenvalues = eigenvalues.clamp_min(0)
        residual = targets - target_mean
        errors = torch.stack(
            [(held_out / (eigenvalues + p) @ projected - residual).square().mean() for p in penalties]
        ).nan_to_num(torch.inf)
        best = int(errors.argmin())
        coefficients = factor[:, None] * (vectors / (eigenvalues + penalties[best]) @ projected)
        if not bool(coefficients.isfinite().all()):
            return failed
        return RidgeFit(
            mean.to(features),
            target_mean.to(features),
            coefficients.to(features),
            penalties[best],
            float(errors[best]),
        )
