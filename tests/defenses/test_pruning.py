"""Pruning against a plain sort."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner import LeNet, NoDefense, SettingError, Task
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses import Pruning, make_defense, pruning
from refiner.defenses.pruning import _kth_smallest_by_sort

RATES = st.one_of(st.sampled_from([0, 0.1, 0.29, 0.5, 0.7, 0.9, 0.999]), st.floats(0, 1, exclude_max=True))


def _pruned(gradient: dict[str, Tensor], **settings: object) -> dict[str, Tensor]:
    return Pruning(**settings).transform(gradient, NoiseSource(), 1)  # type: ignore[arg-type]


def _reference(values: list[float], rate: float) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    pruned = set(order[: math.floor(Fraction(repr(rate)) * len(values))])
    return [0.0 if i in pruned else value for i, value in enumerate(values)]


# Few distinct values, so that many entries are equal.
@given(
    rows=st.integers(1, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 0.5]), min_size=n, max_size=n),
            min_size=1,
            max_size=3,
        )
    ),
    rate=RATES,
    cut=st.integers(0, 40),
)
def test_pruning_zeroes_the_entries_that_a_sort_finds_smallest(
    rows: list[list[float]], rate: float, cut: int
) -> None:
    whole = torch.tensor(rows)
    parts = {"a": whole[:, :cut], "b": whole[:, cut:]}
    wide = _pruned(parts, rate=rate, scope="global")
    assert torch.cat(list(wide.values()), 1).tolist() == [_reference(row, rate) for row in rows]
    narrow = _pruned(parts, rate=rate, scope="layer")
    for name, part in parts.items():
        assert narrow[name].tolist() == [_reference(row, rate) for row in part.tolist()]


# Values that are not finite are included: NaN counts as the largest magnitude.
@given(
    rows=st.integers(1, 30).flatmap(
        lambda n: st.lists(
            st.lists(
                st.one_of(st.floats(0, width=32), st.sampled_from([0.0, 1.0, math.inf, math.nan])),
                min_size=n,
                max_size=n,
            ),
            min_size=1,
            max_size=3,
        )
    ),
    data=st.data(),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sorting_finds_the_same_threshold(
    dtype: torch.dtype, rows: list[list[float]], data: st.DataObject
) -> None:
    """The method used on a GPU, run on the CPU."""
    magnitude = torch.tensor(rows).to(dtype)
    count = data.draw(st.integers(1, magnitude.shape[1]))
    expected = magnitude.kthvalue(count, dim=1, keepdim=True).values
    torch.testing.assert_close(
        _kth_smallest_by_sort(magnitude, count), expected, rtol=0, atol=0, equal_nan=True
    )


def test_the_gpu_method_prunes_the_same_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    # Rounded, so that many entries are equal.
    gradient = {"a": (torch.randn(3, 40, 50) * 20).round(), "b": torch.randn(3, 700)}
    expected = [_pruned(gradient, rate=0.8, scope=scope) for scope in ("layer", "global")]
    monkeypatch.setattr(pruning, "_kth_smallest", _kth_smallest_by_sort)
    result = [_pruned(gradient, rate=0.8, scope=scope) for scope in ("layer", "global")]
    assert all(torch.equal(a[n], b[n]) for a, b in zip(result, expected, strict=True) for n in gradient)


@pytest.mark.parametrize("rate", [0.1, 0.29, 0.57, 0.7, 0.9])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_exactly_the_rate_is_pruned_and_the_smallest_entries_first(
    rate: float, scope: str, dtype: torch.dtype
) -> None:
    gradient = (torch.rand(3, 10, 10) + 0.01).to(dtype)
    (result,) = _pruned({"a": gradient}, rate=rate, scope=scope).values()
    assert (result.dtype, result.shape) == (gradient.dtype, gradient.shape)
    flat, nonzero = gradient.flatten(1), result.flatten(1) != 0
    assert (~nonzero).sum(1).tolist() == [round(100 * rate)] * 3
    for row, mask in zip(flat, nonzero, strict=True):
        assert row[~mask].max() <= row[mask].min()
        assert torch.equal(result.flatten(1)[nonzero], flat[nonzero])


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_lowest_and_highest_rate_on_a_model(scope: str) -> None:
    torch.manual_seed(0)
    sample = load_sample()
    x, y = sample.images[:4].view(2, 2, 3, 32, 32), sample.labels[:4].view(2, 2)
    task = Task(LeNet(), example=x[0])
    plain = NoDefense().protect(task, x, y)
    assert torch.equal(Pruning(0, scope).protect(task, x, y).flat(), plain.flat())
    last = Pruning(0.999999999, scope).protect(task, x, y)
    for victim in range(2):
        one = {name: t[victim] for name, t in last.tensors.items()}
        groups = list(one.values()) if scope == "layer" else [last.flat()[victim]]
        assert [int((g != 0).sum()) for g in groups] == [1] * len(groups)
        assert last.flat()[victim].abs().max() == plain.flat()[victim].abs().max()
    seeded = Pruning(0.5, scope).protect(task, x, y, seed=0).flat()
    assert torch.equal(seeded, Pruning(0.5, scope).protect(task, x, y).flat())
    # Victims are independent.
    alone = Pruning(0.5, scope).transform({n: t[1:] for n, t in plain.tensors.items()}, NoiseSource(), 2)
    together = Pruning(0.5, scope).transform(dict(plain.tensors), NoiseSource(), 2)
    assert all(torch.equal(alone[name], together[name][1:]) for name in alone)


def test_scalars_empty_tensors_and_mixed_dtypes() -> None:
    gradient = {"a": torch.tensor([1.0, -2.0]), "b": torch.zeros(2, 0), "c": torch.rand(2, 3).double()}
    for scope in ("layer", "global"):
        result = _pruned(gradient, rate=0.9, scope=scope)
        assert {n: (t.shape, t.dtype) for n, t in result.items()} == {
            n: (t.shape, t.dtype) for n, t in gradient.items()
        }


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_values_that_are_not_finite_are_kept(rate: float, scope: str) -> None:
    for values in ([math.nan, 1, 2, 3, 4, 5, 6, 7, 8, 9], [math.inf, 1, 2, 3] * 3, [math.nan] * 10):
        (result,) = _pruned({"a": torch.tensor([values])}, rate=rate, scope=scope).values()
        assert not bool(result.isfinite().all())


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, math.nan, "0.5", True, None, math.inf])
def test_rates_out_of_range_raise(rate: object) -> None:
    with pytest.raises(SettingError, match=r"^rate = .*: expected a number in \[0, 1\)$"):
        Pruning(rate=rate)  # type: ignore[arg-type]


def test_scope_size_and_guarantee() -> None:
    with pytest.raises(SettingError, match=r"^scope = 'all': expected one of 'layer', 'global'$"):
        Pruning(scope="all")
    assert int((_pruned({"a": torch.rand(1, 10) + 1}, rate=np.float64(0.3))["a"] == 0).sum()) == 3
    assert make_defense("pruning:rate=0.2,scope=global") == Pruning(0.2, "global")
    # 300 + 100 entries, 30 + 10 of them nonzero: two bytes per index, one for the smaller tensor.
    shapes = {"a": torch.Size([30, 10]), "b": torch.Size([100])}
    assert Pruning(0.9, "global").wire_bytes(shapes) == 40 * 6
    assert Pruning(0.9, "layer").wire_bytes(shapes) == 30 * 6 + 10 * 5
    assert Pruning(0.1, "layer").wire_bytes(shapes) == Pruning(0.1, "global").wire_bytes(shapes) == 1600
    assert Pruning(0.9).wire_bytes({"a": torch.Size([]), "b": torch.Size([0])}) == 4
    assert Pruning().needs == "gradient"
    assert Pruning().guarantee().startswith("none")
