"""Likelihood match: against SciPy's densities, in coloured noise, at chance without a signal, bad input."""

import numpy as np
import pytest
import torch

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import identify, identify_by_likelihood
from refiner.metrics.likelihood import GaussianNoise
from refiner.shaped_noise import NaturalNoise

IMAGES = load_sample().images[:60]


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_ranks_are_those_of_the_densities() -> None:
    """With many residuals the covariance is estimated exactly, and shrinkage changes little."""
    from scipy.stats import multivariate_normal

    root = torch.tril(draws(5, 5, seed=1)) + torch.eye(5, dtype=torch.float64)
    candidates, mean = draws(30, 5, seed=2), draws(5, seed=3)
    observed = candidates[:20] + 2 * draws(20, 5, seed=4) @ root.T + mean
    residuals = 2 * draws(200_000, 5, seed=5) @ root.T + mean
    result = identify_by_likelihood(observed, candidates, residuals)
    covariance = (4 * root @ root.T).numpy()
    expected = []
    for number, row in enumerate(observed):
        densities = [
            multivariate_normal.logpdf(row.numpy(), (mean + candidate).numpy(), covariance)
            for candidate in candidates
        ]
        expected.append(1 + sum(np.array(densities) > densities[number]))
    assert (result.by, result.candidates) == ("likelihood", 30)
    assert max(expected) > 1
    assert np.mean(np.abs(result.ranks.numpy() - expected)) < 0.1


def test_noise_that_hides_an_image_from_correlation_does_not_hide_which_one_it_was() -> None:
    """Noise with the covariance of images, three times as strong."""
    noise = 3 * NaturalNoise.bundled()(draws(460, 3, 32, 32).float())
    noisy = IMAGES + noise[:60]
    assert identify(noisy.clamp(0, 1), IMAGES).top1 < 0.5
    result = identify(noisy, IMAGES, by="likelihood", noise=noise[60:])
    assert result.top1 > 0.9
    # In other noise than that of the model it is worse.
    assert identify(noisy, IMAGES, by="likelihood", noise=draws(400, 3, 32, 32).float()).top1 < result.top1


def test_independent_data_are_at_chance() -> None:
    candidates, residuals = draws(200, 50, seed=1), draws(300, 50, seed=2)
    ranks = identify_by_likelihood(draws(200, 50, seed=3), candidates, residuals).ranks
    assert 80 < float(ranks.mean()) < 120
    assert float((ranks == 1).double().mean()) < 0.05


def test_without_noise_the_nearest_candidate_is_found() -> None:
    candidates = draws(30, 4, seed=1)
    for residuals in (torch.zeros(10, 4), 1e-12 * draws(10, 4, seed=2)):
        assert identify_by_likelihood(candidates, candidates, residuals.double()).top1 == 1


def test_fewer_residuals_than_values_are_enough() -> None:
    """More values than residuals: only as many directions are compared as there are residuals."""
    candidates, noise = draws(50, 3000, seed=1), draws(90, 3000, seed=2)
    result = identify_by_likelihood(candidates + noise[:50], candidates, noise[50:], directions=400)
    assert result.top1 == 1
    assert identify_by_likelihood(candidates, candidates, noise[:2]).ranks.isfinite().all()


def test_other_candidates_and_chunks() -> None:
    noise = draws(80, 3, 32, 32).float()
    noisy = IMAGES[:20] + 0.5 * noise[:20]
    whole = identify(noisy, IMAGES[:20], "likelihood", others=IMAGES[20:], noise=noise[20:])
    parts = identify(noisy, IMAGES[:20], "likelihood", others=IMAGES[20:], noise=noise[20:], chunk=7)
    assert whole.candidates == 60 and torch.equal(whole.ranks, parts.ranks)


def test_equal_candidates_share_the_mean_of_their_ranks() -> None:
    candidates = draws(10, 4)
    twice = torch.cat([candidates, candidates[:1]])
    ranks = identify_by_likelihood(twice, twice, draws(50, 4, seed=1)).ranks
    assert ranks.tolist() == [1.5, *[1.0] * 9, 1.5]


def test_invalid_input_raises() -> None:
    rows = draws(5, 4)
    with pytest.raises(DataError, match=r"residuals = \[5, 3\]: expected 2 rows or more of 4 values"):
        identify_by_likelihood(rows, rows, rows[:, :3])
    with pytest.raises(DataError, match=r"residuals = \[1, 4\]: expected 2 rows or more"):
        identify_by_likelihood(rows, rows, rows[:1])
    with pytest.raises(DataError, match=r"predicted = \[4, 4\]: expected a candidate for each of the 5"):
        identify_by_likelihood(rows, rows[:4], rows)
    with pytest.raises(DataError, match=r"observed = .*: expected finite values"):
        identify_by_likelihood(rows * torch.nan, rows, rows)
    with pytest.raises(SettingError, match="directions = 0"):
        identify_by_likelihood(rows, rows, rows, directions=0)
    with pytest.raises(DataError, match=r'noise = None: expected draws of the noise .* for by="likelihood"'):
        identify(IMAGES, IMAGES, "likelihood")
    with pytest.raises(DataError, match=r"noise = .*: expected draws .* None otherwise"):
        identify(IMAGES, IMAGES, noise=IMAGES)


def test_directions_outside_the_basis_share_a_variance() -> None:
    """With many residuals the density is that of the normal distribution with this covariance."""
    generator = torch.Generator().manual_seed(0)
    deviations = torch.tensor([3.0, 1.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    residuals = torch.randn(200_000, 5, generator=generator, dtype=torch.float64) * deviations
    # Candidates that show the basis differ in the first two directions.
    shown = torch.eye(5, dtype=torch.float64)[:2] * torch.tensor([[2.0], [1.0]], dtype=torch.float64)
    noise = GaussianNoise(torch.cat([shown, -shown]), 2, remainder=True)
    for part in residuals.split(70_000):
        noise.add(part)
    observed, predicted = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    exact = torch.distributions.Normal(predicted[None], deviations).log_prob(observed[:, None]).sum(2)
    found = noise.log_likelihoods(observed, predicted)
    torch.testing.assert_close(found - found[:, :1], exact - exact[:, :1], atol=0.1, rtol=0.02)
    each = noise.log_likelihoods(observed, predicted.expand(3, 3, 5))
    torch.testing.assert_close(each, found)


def test_single_precision_compares_as_double_does() -> None:
    scales = torch.logspace(0, -3, 40, dtype=torch.float64)[:, None]
    candidates, residuals = scales * draws(40, 20_000, seed=1), 0.1 * draws(60, 20_000, seed=2)
    found = []
    for dtype in (torch.float64, torch.float32):
        noise = GaussianNoise(candidates.to(dtype), 30, remainder=True)
        noise.add(residuals.to(dtype))
        found.append(noise.log_likelihoods((candidates[:5] + residuals[:5]).to(dtype), candidates.to(dtype)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3 * float(found[0].abs().max()))
