"""Quantisation against a plain loop over entries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner import LeNet, NoDefense, SettingError, Task
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses import Quantisation, make_defense

PAPER = (1, 2, 4, 8, 12, 16, 20, 24, 28)
VALUES = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30)


def _quantised(gradient: dict[str, Tensor], noise: NoiseSource | None = None, **settings: object) -> Tensor:
    defense = Quantisation(**settings)  # type: ignore[arg-type]
    (quantised,) = defense.transform(gradient, noise or NoiseSource(), 1).values()
    return quantised


def _reference(values: list[float], bits: int) -> list[float]:
    """The nearest level of each entry; of two equally near ones the even one."""
    if bits == 1:
        scale = sum(map(abs, values)) / len(values)
        return [scale if value >= 0 else -scale for value in values]
    most, top = max(map(abs, values)), 2 ** (bits - 1) - 1
    if most == 0:
        return [0.0] * len(values)
    quantised = []
    for value in values:
        place = value / most * top
        near = [math.floor(place), math.ceil(place)]
        level = min(near, key=lambda n: (abs(n - place), n % 2))
        quantised.append(level / top * most)
    return quantised


@given(values=VALUES, bits=st.sampled_from([*PAPER, 3, 32]))
def test_entries_are_rounded_to_the_nearest_level(values: list[float], bits: int) -> None:
    quantised = _quantised({"a": torch.tensor([values], dtype=torch.float64)}, bits=bits)
    assert np.allclose(quantised[0].numpy(), _reference(values, bits), rtol=1e-12, atol=0)


@given(values=VALUES, bits=st.integers(1, 32), stochastic=st.booleans(), seed=st.integers(0, 99))
def test_number_of_levels_rounding_error_and_sign(
    values: list[float], bits: int, stochastic: bool, seed: int
) -> None:
    gradient = torch.tensor([values])
    quantised = _quantised({"a": gradient}, NoiseSource(seed=seed), bits=bits, stochastic=stochastic)
    most = float(gradient.abs().max())
    assert float(quantised.abs().max()) <= most * (1 + 1e-6)
    # A negative zero would reveal the sign of a rounded entry.
    assert not bool((quantised.signbit() & (quantised == 0)).any())
    if bits == 1:
        assert quantised.abs().unique().numel() == 1
        return
    step = most / (2 ** (bits - 1) - 1)
    assert (
        float((quantised.double() - gradient.double()).abs().max())
        <= step * (1 if stochastic else 0.5) + 1e-7 * most
    )
    assert bool((quantised * gradient >= 0).all())
    assert quantised.unique().numel() <= 2**bits - 1
    assert bool((quantised[gradient == 0] == 0).all())
    assert float(quantised.abs().max()) == most


@pytest.mark.parametrize("bits", [1, 2, 4, 28])
def test_stochastic_rounding_preserves_the_mean(bits: int) -> None:
    gradient = torch.linspace(-1, 1, 41, dtype=torch.float64) ** 3
    draws = 20_000
    quantised = _quantised({"a": gradient.expand(draws, -1)}, NoiseSource(seed=0), bits=bits, stochastic=True)
    step = 2.0 if bits == 1 else 1 / (2 ** (bits - 1) - 1)
    assert float((quantised.mean(0) - gradient).abs().max()) < 5 * step / 2 / math.sqrt(draws)
    assert torch.equal(quantised[:, [0, -1]], gradient[[0, -1]].expand(draws, -1))


def test_random_draws_differ_between_seeds_victims_and_tensors() -> None:
    row = torch.rand(1, 200) - 0.5
    gradient = {"a": row.expand(2, -1), "b": row.expand(2, -1)}
    defense = Quantisation(bits=2, stochastic=True)
    first, again, other = (defense.transform(gradient, NoiseSource(seed=s), 1) for s in (1, 1, 2))
    rows = [*first["a"], *first["b"], *other["a"]]
    assert all(torch.equal(first[name], again[name]) for name in gradient)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)
    free = [defense.transform(gradient, NoiseSource(), 1)["a"] for _ in range(2)]
    assert not torch.equal(*free)
    exact = [Quantisation(bits=2).transform(gradient, NoiseSource(), 1)["a"] for _ in range(2)]
    assert torch.equal(*exact)


def test_each_tensor_of_each_victim_has_its_own_scale() -> None:
    gradient = {"a": torch.tensor([[1.0, 0.2], [100.0, 20.0]]), "b": torch.tensor([0.01, -3.0])}
    quantised = Quantisation(bits=8).transform(gradient, NoiseSource(), 1)
    assert quantised["a"][:, 0].tolist() == [1.0, 100.0]
    assert torch.allclose(quantised["a"][1], 100 * quantised["a"][0])
    assert torch.equal(quantised["b"], gradient["b"])


@pytest.mark.parametrize("bits", PAPER)
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_zero_gradient_stays_zero(bits: int, stochastic: bool, dtype: torch.dtype) -> None:
    quantised = _quantised({"a": torch.zeros(2, 3, 4, dtype=dtype)}, bits=bits, stochastic=stochastic)
    assert (quantised.dtype, quantised.shape) == (dtype, (2, 3, 4))
    assert bool((quantised == 0).all())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("bits", [1, 2, 28])
@pytest.mark.parametrize("stochastic", [False, True])
def test_values_that_are_not_finite_stay_so(value: float, bits: int, stochastic: bool) -> None:
    quantised = _quantised({"a": torch.tensor([[1.0, value, -2.0]])}, bits=bits, stochastic=stochastic)
    assert not bool(quantised.isfinite().all())


def test_subnormal_numbers_and_empty_tensors() -> None:
    tiny = torch.tensor([[1e-45, -3e-45, 0.0]])
    assert torch.equal(_quantised({"a": tiny}, bits=28), tiny)
    assert _quantised({"a": torch.zeros(2, 0)}, bits=4).shape == (2, 0)


def test_more_bits_are_closer_and_28_bits_almost_equal() -> None:
    torch.manual_seed(0)
    sample = load_sample()
    x, y = sample.images[:4].view(2, 2, 3, 32, 32), sample.labels[:4].view(2, 2)
    task = Task(LeNet(), example=x[0])
    plain = NoDefense().protect(task, x, y)
    for stochastic in (False, True):
        updates = [Quantisation(bits, stochastic).protect(task, x, y, seed=0).flat() for bits in PAPER]
        distances = [float((u - plain.flat()).norm() / plain.flat().norm()) for u in updates]
        assert distances == sorted(distances, reverse=True)
        assert distances[-1] < 1e-7
        assert distances[-2] < 1e-6
    levels = Quantisation(bits=4).protect(task, x, y)
    assert all(row.unique().numel() <= 15 for t in levels.tensors.values() for row in t)


def test_one_bit_is_the_nearest_multiple_of_the_signs() -> None:
    gradient = torch.randn(1, 500, dtype=torch.float64)
    quantised = _quantised({"a": gradient}, bits=1)
    best = (quantised - gradient).norm()
    assert all(bool((quantised * factor - gradient).norm() > best) for factor in (0.9, 0.99, 1.01, 1.1))


@pytest.mark.parametrize("bits", [0, 33, -1, 8.0, True, "8", None])
def test_bits_out_of_range_raise(bits: object) -> None:
    with pytest.raises(SettingError, match=r"^bits = .*: expected an integer in \[1, 32\]$"):
        Quantisation(bits=bits)  # type: ignore[arg-type]


def test_name_size_and_guarantee() -> None:
    with pytest.raises(SettingError, match=r"^stochastic = 1: expected True or False$"):
        Quantisation(stochastic=1)  # type: ignore[arg-type]
    assert make_defense("gq:bits=4,stochastic=true") == Quantisation(4, True)
    shapes = {"a": torch.Size([3, 5]), "b": torch.Size([])}
    assert [Quantisation(b).wire_bytes(shapes) for b in (1, 3, 8, 28)] == [11, 15, 24, 65]
    assert Quantisation().needs == "gradient"
    assert Quantisation().guarantee().startswith("none")
