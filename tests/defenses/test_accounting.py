"""`dp_epsilon` against closed forms; invalid arguments; the assumptions that a bound lists."""

import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from refiner import NoDefense, RefinerError, SettingError
from refiner.defenses import DPGaussian, DPLaplace, dp_epsilon
from refiner.defenses.accounting import ASSUMPTIONS


@pytest.fixture(scope="module")
def library(missing: Callable[[str], NoReturn]) -> ModuleType:
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        missing("dp-accounting")


def _gaussian(multiplier: float, delta: float) -> float:
    """ε of one Gaussian upload by the exact formula of Balle and Wang (2018)."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - delta)

    return float(brentq(excess, 0, 300))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("multiplier", "steps"), [(0.3, 9), (1.0, 1), (4.0, 9)])
def test_epsilon_of_gaussian_noise_without_sampling(multiplier: float, steps: int) -> None:
    defense = DPGaussian(magnitude=multiplier, per_sample=True, clip=7.0)
    bound = dp_epsilon(defense, steps=steps, sampling_rate=1, delta=1e-5).epsilon
    # n Gaussian uploads are equivalent to one with noise divided by √n.
    assert bound == pytest.approx(_gaussian(multiplier / math.sqrt(steps), 1e-5), rel=2e-3)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_epsilon_of_one_laplace_upload(multiplier: float, rate: float) -> None:
    delta = 1e-6
    bound = dp_epsilon(DPLaplace(multiplier, per_sample=True), steps=1, sampling_rate=rate, delta=delta)
    # δ(ε) = 1 − exp((ε − 1/b) / 2), and sampling makes ε and δ of a whole batch log(1 + q(e^ε − 1)) and qδ.
    whole = 1 / multiplier + 2 * math.log1p(-delta / rate)
    assert bound.epsilon == pytest.approx(math.log1p(rate * math.expm1(whole)), rel=2e-3)


def test_a_sample_concentrated_in_one_entry_is_the_worst_case(library: ModuleType) -> None:
    """A sample that is spread over two entries has a smaller ε."""
    whole = library.pld.PLDAccountant()
    whole.compose(library.LaplaceDpEvent(0.5))
    for first in (0.5, 0.7, 0.9):
        spread = library.pld.PLDAccountant()
        for share in (first, 1 - first):
            spread.compose(library.LaplaceDpEvent(0.5 / share))
        for delta in (1e-1, 1e-3, 1e-6):
            assert spread.get_epsilon(delta) <= whole.get_epsilon(delta) * (1 + 1e-3)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("kind", [DPGaussian, DPLaplace])
def test_delta_agrees_with_sampled_privacy_losses(kind: type[DPGaussian] | type[DPLaplace]) -> None:
    """δ at the computed ε, estimated from draws: the larger of adding and of removing a sample."""
    scale, rate, steps, delta, draws = 0.8, 0.1, 5, 5e-2, 200_000
    bound = dp_epsilon(kind(scale, per_sample=True), steps=steps, sampling_rate=rate, delta=delta)

    def log_density(noise: np.ndarray) -> np.ndarray:
        """Up to a constant."""
        return -((noise / scale) ** 2) / 2 if kind is DPGaussian else -np.abs(noise) / scale

    rng = np.random.default_rng(0)
    deltas = []
    for removed in (True, False):
        loss = np.zeros(draws)
        for _ in range(steps):
            noise = rng.normal(0, scale, draws) if kind is DPGaussian else rng.laplace(0, scale, draws)
            seen = noise + (rng.random(draws) < rate) if removed else noise
            log_ratio = np.log1p(rate * np.expm1(log_density(seen - 1) - log_density(seen)))
            loss += log_ratio if removed else -log_ratio
        deltas.append(np.maximum(0, -np.expm1(bound.epsilon - loss)).mean())
    # More than four standard errors.
    assert max(deltas) == pytest.approx(delta, rel=0.03)


@pytest.mark.usefixtures("library")
def test_epsilon_is_monotonic_in_every_argument() -> None:
    def epsilon(**changes: float) -> float:
        # Less noise takes longer to compute.
        chosen = {"magnitude": 2.0, "steps": 1000, "sampling_rate": 0.005, "delta": 1e-5, **changes}
        defense = DPGaussian(chosen.pop("magnitude"), per_sample=True)
        return dp_epsilon(defense, **chosen).epsilon  # type: ignore[arg-type]

    base = epsilon()
    assert max(epsilon(magnitude=3.0), epsilon(steps=100)) < base
    assert max(epsilon(sampling_rate=0.001), epsilon(delta=1e-3)) < base


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("kind", [DPGaussian, DPLaplace])
@pytest.mark.parametrize("magnitude", [0.01, 100.0])
def test_epsilon_is_finite_at_the_ends_of_the_range(
    kind: type[DPGaussian] | type[DPLaplace], magnitude: float
) -> None:
    bound = dp_epsilon(kind(magnitude, per_sample=True), steps=1000, sampling_rate=0.1, delta=1e-5).epsilon
    assert math.isfinite(bound)
    assert bound > 0
    assert (bound > 100) == (magnitude < 1)


@pytest.mark.usefixtures("library")
def test_a_bound_lists_its_assumptions() -> None:
    bound = dp_epsilon(DPLaplace(1.0, per_sample=True), steps=10, sampling_rate=0.1, delta=1e-5)
    assert (bound.steps, bound.sampling_rate, bound.delta) == (10, 0.1, 1e-5)
    assert bound.assumptions == ASSUMPTIONS
    text = str(bound)
    assert text.startswith("ε = ")
    assert "\n" not in text
    for part in (
        "δ = 1e-05",
        "10 uploads",
        "Poisson",
        "added or removed",
        "fixed size",
        "Laplace",
        "dp-accounting",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("defense", "text"),
    [
        (DPGaussian(), "dp-gaussian: has no ε: none: the clip bounds a client's whole upload"),
        (DPLaplace(), "dp-laplace: has no ε: none: the clip bounds"),
        (DPGaussian(1.0, None, True), "dp-gaussian: has no ε: none: without clipping no noise"),
        (DPGaussian(0.0, 1.0, True), "dp-gaussian: has no ε: none: there is no noise"),
        (DPGaussian(1e-6, 1.0, True), "dp-gaussian: has no ε: none: ε exceeds 100"),
        (NoDefense(), "none: has no ε: it is neither DPGaussian nor DPLaplace"),
        ("dp", "str: has no ε"),
    ],
)
def test_defences_without_an_epsilon_raise(defense: object, text: str) -> None:
    with pytest.raises(SettingError) as raised:
        dp_epsilon(defense, steps=1, sampling_rate=0.1, delta=1e-5)  # type: ignore[arg-type]
    assert str(raised.value).startswith(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": 0}, "steps = 0: expected an integer ≥ 1"),
        ({"steps": 1.5}, "steps = 1.5: expected an integer ≥ 1"),
        ({"sampling_rate": 0}, "sampling_rate = 0: expected a number in (0, 1]"),
        ({"sampling_rate": 1.1}, "sampling_rate = 1.1: expected a number in (0, 1]"),
        ({"delta": 0}, "delta = 0: expected a number in (0, 1]"),
        ({"delta": 1}, "delta = 1: expected a number in (0, 1)"),
    ],
)
def test_arguments_out_of_range_raise(change: dict[str, float], text: str) -> None:
    settings = {"steps": 1, "sampling_rate": 0.1, "delta": 1e-5, **change}
    with pytest.raises(SettingError) as raised:
        dp_epsilon(DPGaussian(1.0, per_sample=True), **settings)  # type: ignore[arg-type]
    assert str(raised.value) == text


def test_a_missing_library_raises_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importlib.sys.modules, "dp_accounting", None)  # type: ignore[attr-defined]
    with pytest.raises(
        RefinerError, match=r"^dp_epsilon needs dp-accounting: pip install 'refiner-fl\[dp\]'$"
    ):
        dp_epsilon(DPGaussian(1.0, per_sample=True), steps=1, sampling_rate=0.1, delta=1e-5)
