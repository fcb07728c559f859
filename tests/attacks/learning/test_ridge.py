"""Ridge regression against closed forms and NumPy's least squares."""

import numpy as np
import torch

from refiner.attacks.learning.ridge import RidgeSums


def problem(rows: int, features: int, targets: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(3)
    # Correlated features far from the origin, of different sizes.
    mix = torch.randn(features, features, generator=draws, dtype=torch.float64)
    x = 50 + torch.randn(rows, features, generator=draws, dtype=torch.float64) @ mix
    y = x @ torch.randn(features, targets, generator=draws, dtype=torch.float64) + 7
    return x, y + noise * torch.randn(rows, targets, generator=draws, dtype=torch.float64)


def sums_of(x: torch.Tensor, y: torch.Tensor, parts: int) -> RidgeSums:
    sums = RidgeSums(x.shape[1], y.shape[1], x.device)
    for rows in torch.tensor_split(torch.arange(len(x)), parts):
        sums.add(x[rows], y[rows])
    return sums


def test_no_penalty_is_least_squares() -> None:
    x, y = problem(60, 5, 2, noise=1.0)
    fit = sums_of(x, y, 4).solve(x[:10], y[:10], penalties=[0.0])
    with_constant = np.concatenate([x.numpy(), np.ones((60, 1))], axis=1)
    expected, *_ = np.linalg.lstsq(with_constant, y.numpy(), rcond=None)
    np.testing.assert_allclose(fit.coefficients.numpy(), expected[:-1], rtol=1e-8)
    np.testing.assert_allclose(fit(x).numpy(), with_constant @ expected, rtol=1e-8)


def test_a_penalty_is_the_closed_form_on_standardised_features() -> None:
    x, y = problem(40, 6, 3, noise=2.0)
    fit = sums_of(x, y, 3).solve(x[:5], y[:5], penalties=[0.3])
    scale = x.numpy().std(0)
    z = (x.numpy() - x.numpy().mean(0)) / scale
    centred = y.numpy() - y.numpy().mean(0)
    expected = np.linalg.solve(z.T @ z / 40 + 0.3 * np.eye(6), z.T @ centred / 40) / scale[:, None]
    np.testing.assert_allclose(fit.coefficients.numpy(), expected, rtol=1e-9)
    assert fit.penalty == 0.3


def test_the_penalty_with_the_lowest_held_out_error_is_chosen() -> None:
    # Fewer rows than features: without a penalty the fit follows the noise.
    x, y = problem(100, 30, 2, noise=40.0)
    sums, held_x, held_y = sums_of(x[:25], y[:25], 2), x[25:], y[25:]
    penalties = [1e-8, 1e-3, 0.1, 1.0]
    errors = {p: sums.solve(held_x, held_y, penalties=[p]).error for p in penalties}
    chosen = sums.solve(held_x, held_y, penalties=penalties)
    assert errors[chosen.penalty] == min(errors.values()) == chosen.error
    assert chosen.penalty > 1e-8
    assert abs(chosen.error - float((chosen(held_x) - held_y).square().mean())) < 1e-8 * chosen.error


def test_the_order_and_number_of_parts_do_not_matter() -> None:
    x, y = problem(50, 4, 2, noise=1.0)
    one, many = (sums_of(x, y, parts).solve(x[:9], y[:9]) for parts in (1, 7))
    torch.testing.assert_close(one.coefficients, many.coefficients, rtol=1e-9, atol=0)


def test_features_without_variance_give_a_fit_that_says_so() -> None:
    y = torch.rand(8, 2)
    for x in (torch.zeros(8, 3), torch.full((8, 3), 2.5)):
        fit = sums_of(x, y, 2).solve(x, y)
        assert fit.error == torch.inf
        torch.testing.assert_close(fit.target_mean, y.mean(0))
    nothing = RidgeSums(3, 2, y.device).solve(torch.rand(4, 3), torch.rand(4, 2))
    assert nothing.error == torch.inf


def test_a_constant_feature_beside_others_changes_nothing() -> None:
    x, y = problem(30, 3, 2, noise=1.0)
    extended = torch.cat([x, torch.full((30, 1), 4.0, dtype=x.dtype)], dim=1)
    plain, longer = (sums_of(t, y, 2).solve(t[:6], y[:6]) for t in (x, extended))
    torch.testing.assert_close(plain(x), longer(extended))
