"""Fixed-point encoding: rounding, range, and sums that do not wrap."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import DataError, SettingError
from refiner.federation.secure import FixedPoint


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20),
    st.sampled_from([(16, 32), (8, 32), (32, 64), (40, 64)]),
    st.integers(1, 100),
)
def test_decoding_inverts_encoding_up_to_half_the_resolution(
    values: list[float], bits: tuple[int, int], weight: int
) -> None:
    encoding = FixedPoint(8, *bits)
    decoded = encoding.decode(encoding.encode(torch.tensor(values), weight), weight)
    error = (decoded - torch.tensor(values, dtype=torch.float64)).abs().max()
    # The last term is the rounding of the division in float64.
    assert error <= 0.5 / (weight * 2 ** bits[0]) + 8 * 2.0**-52


@pytest.mark.parametrize("modulus_bits", [32, 64])
def test_the_largest_allowed_sum_does_not_wrap(modulus_bits: int) -> None:
    encoding = FixedPoint(bound=3.7, fraction_bits=20, modulus_bits=modulus_bits)
    clients, weight = 7, (2 ** (modulus_bits - 1) - 1) // (7 * encoding.max_encoded())
    encoding.check_sum_fits(clients, weight)
    with pytest.raises(SettingError, match="would wrap"):
        encoding.check_sum_fits(clients, weight + weight // 1000 + 1)
    for sign in (1, -1):
        row = encoding.encode(torch.full((3,), 3.7 * sign, dtype=torch.float64), weight)
        total = np.zeros_like(row)
        for _ in range(clients):
            total += row
        mean = encoding.decode(total, clients * weight)
        assert torch.allclose(mean, torch.full((3,), 3.7 * sign, dtype=torch.float64), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_floating_point_dtype_is_accepted(dtype: torch.dtype) -> None:
    encoding = FixedPoint(fraction_bits=8)
    encoded = encoding.encode(torch.tensor([1.5, -0.25], dtype=dtype))
    assert encoding.to_signed(encoded).tolist() == [384, -64]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("value", "sent"), [(math.nan, 0), (math.inf, 2), (-math.inf, -2), (2.0625, 2), (-3e38, -2)]
)
def test_a_value_beyond_the_bound_is_clipped_and_never_refused(value: float, sent: float) -> None:
    """A refusal would tell a server, which chooses the model, something about the data."""
    encoding = FixedPoint(bound=2)
    assert encoding.decode(encoding.encode(torch.tensor([0.5, value]))).tolist() == [0.5, sent]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": 0}, "bound = 0: expected a number in (0, 4.29497e+09]"),
        ({"bound": math.nan}, "bound = nan: expected a number in (0, 4.29497e+09]"),
        ({"fraction_bits": 0}, "fraction_bits = 0: expected an integer in [1, 52]"),
        ({"fraction_bits": 8.0}, "fraction_bits = 8.0: expected an integer in [1, 52]"),
        ({"modulus_bits": 48}, "modulus_bits = 48: expected 32 or 64"),
    ],
)
def test_a_wrong_setting_raises_a_one_line_error(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        FixedPoint(**settings)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_the_error_says_if_no_fraction_bits_would_fit() -> None:
    with pytest.raises(SettingError, match="use a smaller bound or max_weight or modulus_bits = 64"):
        FixedPoint(bound=2.0**31, fraction_bits=1, modulus_bits=32).check_sum_fits(2)


def test_only_a_vector_of_floats_is_accepted() -> None:
    for values in (torch.ones(2, 2), torch.arange(3), [1.0]):
        with pytest.raises(DataError, match="expected a floating-point tensor"):
            FixedPoint().encode(values)  # type: ignore[arg-type]
