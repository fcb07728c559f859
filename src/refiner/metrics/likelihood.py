"""Likelihood match: which of several known candidates explains an observation best, given the noise."""

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError
from refiner.metrics.ranks import Identification, ranks_of_own

# Added to variances as a share of the largest: without any noise the match is by distance.
_LEAST_VARIANCE = 1e-9
# Columns whose products are summed at a time.
_COLUMNS_AT_ONCE = 2**14


def identify_by_likelihood(
    observed: Tensor, predicted: Tensor, residuals: Tensor, *, directions: int = 400, chunk: int = 256
) -> Identification:
    """Rank each observation's own candidate by its likelihood under Gaussian noise.

    The noise has the mean and the covariance of `residuals`. It is compared in the directions in which the
    candidates differ most; the correlations between directions are reduced by the factor R / (R + k) for R
    residuals and k directions, since fewer residuals estimate them less well.

    This match needs candidates that the attacker already has, and says nothing about images that it has not.
    Noise that hides what an image looks like need not hide which of several known images it was.

    Args:
        observed: `[N, D]`, such as uploads or robust images.
        predicted: `[M, D]`, M ≥ N, what is expected for each candidate; the n-th is that of the n-th
            observation.
        residuals: `[R, D]`, R ≥ 2, observations less their predictions for images that are no candidates.
        directions: The most directions to compare in.
        chunk: Observations compared at a time.

    Returns:
        The ranks `[N]` and the number of candidates.

    Raises:
        DataError: The shapes don't fit, there are too few rows, or values are not finite.

    >>> draws = torch.Generator().manual_seed(0)
    >>> candidates, noise = (torch.randn(50, 20, generator=draws) for _ in range(2))
    >>> identify_by_likelihood(candidates + 0.1 * noise, candidates, 0.1 * noise.flip(0)).top1
    1.0
    """
    checks.integer("directions", directions, 1)
    checks.integer("chunk", chunk, 1)
    observed, predicted, residuals = _checked(observed, predicted, residuals)
    noise = GaussianNoise(predicted, min(directions, len(residuals) - 1))
    noise.add(residuals)
    ranks = []
    for begin in range(0, len(observed), chunk):
        # The log-likelihood up to what all candidates share.
        ranks.append(ranks_of_own(noise.log_likelihoods(observed[begin : begin + chunk], predicted), begin))
    return Identification("likelihood", torch.cat(ranks), len(predicted))


class GaussianNoise:
    """Gaussian noise with the mean and covariance of residuals, in the directions that tell candidates apart.

    With `remainder`, all other directions count too, with one variance for all of them: noise that is the
    same in every direction hides least where few candidates differ. Residuals are added a part at a time, and
    not kept.

    Args:
        predicted: `[M, D]`, what is expected for candidates, which differ most in some directions.
        directions: The most directions whose covariance is estimated; fewer than there will be residuals.
        remainder: Whether the other directions count.

    >>> draws = torch.Generator().manual_seed(0)
    >>> candidates, residuals = torch.randn(2, 50, 20, generator=draws, dtype=torch.float64)
    >>> noise = GaussianNoise(candidates, 10)
    >>> noise.add(residuals)
    >>> noise.log_likelihoods(candidates[:3], candidates).shape
    torch.Size([3, 50])
    """

    def __init__(self, predicted: Tensor, directions: int, *, remainder: bool = False) -> None:
        self._basis = _directions(predicted, directions)
        self._least, self._remainder = float(predicted.square().mean()), remainder
        self._coordinates: list[Tensor] = []
        self._total, self._squares = torch.zeros_like(predicted[0], dtype=torch.float64), 0.0

    def add(self, residuals: Tensor) -> None:
        """Count residuals `[R, D]`: observations less their predictions."""
        self._coordinates.append((residuals @ self._basis).double())
        self._total += residuals.sum(0)
        self._squares += float(residuals.square().sum(1).double().sum())

    def log_likelihoods(self, observed: Tensor, predicted: Tensor) -> Tensor:
        """Return log-likelihoods up to a constant of each observation.

        Args:
            observed: `[N, D]`.
            predicted: What is expected for candidates, `[M, D]` for all observations or `[N, M, D]`.

        Returns:
            `[N, M]` in float64.
        """
        root, variance = self._fitted()
        centred = observed - self._mean.to(observed)
        inside, expected = (centred @ self._basis).double(), (predicted @ self._basis).double()
        found = _log_density(_whiten(root, inside), _whiten(root, expected))
        if self._remainder and self._outside:
            # What all directions say less what those of the basis do.
            outside = _log_density(centred, predicted).double() - _log_density(inside, expected)
            found = found + outside / variance
        return found

    @property
    def _outside(self) -> int:
        """The number of directions that are not in the basis."""
        return self._basis.shape[0] - self._basis.shape[1]

    @property
    def _mean(self) -> Tensor:
        return self._total / sum(map(len, self._coordinates))

    def _fitted(self) -> tuple[Tensor, float]:
        """The root of the covariance in the basis `[k, k]`, and the variance of each other direction."""
        noise = torch.cat(self._coordinates)
        noise = noise - noise.mean(0)
        covariance = noise.mT @ noise / (len(noise) - 1)
        variances = covariance.diagonal()
        kept = len(noise) / (len(noise) + len(variances))
        covariance = kept * covariance + (1 - kept) * variances.diag()
        least = _LEAST_VARIANCE * max(float(variances.max()), self._least, 1e-30)
        root: Tensor = torch.linalg.cholesky(covariance + least * torch.eye(len(variances)).to(noise))
        around_mean = self._squares - len(noise) * float(self._mean.square().sum())
        outside = around_mean - float(noise.square().sum())
        return root, max(outside / ((len(noise) - 1) * max(self._outside, 1)), least)


def _log_density(rows: Tensor, candidates: Tensor) -> Tensor:
    """Products `[N, M]` of rows `[N, k]` with candidates less half of their squares: a normal log-density."""
    products = (candidates @ rows[..., None])[..., 0] if candidates.ndim == 3 else rows @ candidates.mT
    return products - candidates.square().sum(-1) / 2


def _directions(predicted: Tensor, count: int) -> Tensor:
    """The principal directions of the candidates `[D, k]`, the largest first."""
    centred = predicted - predicted.mean(0)
    rank = min(count, *centred.shape)
    if centred.shape[1] <= len(centred):
        vectors: Tensor = torch.linalg.eigh(centred.mT @ centred)[1]
        return vectors.flip(1)[:, :rank]
    # From the smaller of the two matrices of products, which are exact for single precision too.
    parts = (part.double() for part in torch.split(centred, _COLUMNS_AT_ONCE, dim=1))
    values, vectors = torch.linalg.eigh(torch.stack([part @ part.mT for part in parts]).sum(0))
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    found = values > (1e-12 if centred.dtype == torch.float64 else 1e-8) * values[0].clamp_min(1e-30)
    found[0] = True
    basis: Tensor = centred.mT @ vectors[:, found].to(centred)
    return torch.nn.functional.normalize(basis, dim=0, eps=1e-30)


def _whiten(root: Tensor, rows: Tensor) -> Tensor:
    """Rows `[…, D]` in which the noise has the identity as covariance."""
    white: Tensor = torch.linalg.solve_triangular(root, rows.flatten(0, -2).mT, upper=False)
    return white.mT.view(*rows.shape[:-1], -1)


def _checked(*matrices: Tensor) -> tuple[Tensor, ...]:
    for name, matrix, least in zip(("observed", "predicted", "residuals"), matrices, (1, 2, 2), strict=True):
        if not isinstance(matrix, Tensor) or matrix.ndim != 2 or not matrix.is_floating_point():
            shown = list(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise DataError(field=name, value=shown, expected="floats [rows, values]")
        if len(matrix) < least or matrix.shape[1] != matrices[0].shape[1]:
            expected = f"{least} rows or more of {matrices[0].shape[1]} values"
            raise DataError(field=name, value=list(matrix.shape), expected=expected)
        if not bool(matrix.isfinite().all()):
            raise DataError(field=name, value=matrix, expected="finite values")
    if len(matrices[1]) < len(matrices[0]):
        raise DataError(
            field="predicted",
            value=list(matrices[1].shape),
            expected=f"a candidate for each of the {len(matrices[0])} observations",
        )
    return tuple(matrix.detach().double() for matrix in matrices)
