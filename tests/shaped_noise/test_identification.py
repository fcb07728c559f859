"""The match under noise of a known covariance, against densities and against noise that is only sampled."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.metrics import identify
from refiner.shaped_noise import NaturalNoise, identify_under_noise


def test_ranks_are_those_of_the_densities() -> None:
    noise = NaturalNoise.fit(torch.rand(400, 2, 4, 4)).with_white(0.1)
    images, draws = torch.rand(12, 2, 4, 4), torch.randn(8, 2, 4, 4)
    noisy = images[:8] + noise(draws)
    found = identify_under_noise(noisy, images, noise)
    impulses = noise(torch.eye(32).view(32, 2, 4, 4)).flatten(1).double()
    density = MultivariateNormal(torch.zeros(32, dtype=torch.float64), impulses.T @ impulses)
    differences = (noisy[:, None] - images[None]).flatten(2).double()
    order = density.log_prob(differences).argsort(1, descending=True)
    ranks = (order == torch.arange(8)[:, None]).double().argmax(1) + 1
    assert found.ranks.tolist() == ranks.tolist() and found.candidates == 12


def test_it_finds_more_than_a_match_with_sampled_noise() -> None:
    images = load_sample().images
    noise, generator = NaturalNoise.bundled().with_white(0.6), torch.Generator().manual_seed(0)
    draws = noise(torch.randn(400, 3, 32, 32, generator=generator))
    noisy = images + 3 * draws[: len(images)]
    exact = identify_under_noise(noisy, images, noise).top1
    sampled = identify(noisy, images, "likelihood", noise=3 * draws[len(images) :]).top1
    assert exact > sampled > 0.1


def test_bad_input_is_one_line() -> None:
    images, noise = torch.rand(3, 3, 32, 32), NaturalNoise.bundled()
    with pytest.raises(DataError, match=r"^noisy = \[1, 3, 8, 8\]: expected images of shape \(3, 32, 32\)$"):
        identify_under_noise(torch.rand(1, 3, 8, 8), images, noise)
    with pytest.raises(DataError, match=r"^candidates = 2: expected 3 or more images$"):
        identify_under_noise(images, images[:2], noise)
