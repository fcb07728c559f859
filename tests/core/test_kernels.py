"""Our own GPU kernels against their plain twins."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.core import convolution, noise, norm_ops, precision
from refiner.core.kernels import usable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels need a GPU")

# How many of a function's arguments are rows, and how many have one number a row, in which order.
FUNCTIONS = {
    "standardise": (lambda x: norm_ops.standardise(x, 1e-5), "r"),
    "slope": (norm_ops.slope, "rrcc"),
    "slopes_of_slope": (norm_ops.slopes_of_slope, "rrrcc"),
    "scale_slopes": (norm_ops.scale_slopes, "rrc"),
    "slopes_of_scale_slopes": (norm_ops.slopes_of_scale_slopes, "rccrrc"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [1, 3, 16, 384, 2048, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows(name: str, n: int, dtype: torch.dtype) -> None:
    function, kinds = FUNCTIONS[name]
    of_columns = dtype if "scale" in name else torch.float32
    given = [
        (torch.randn(4, 5, n) + 1).to("cuda", dtype)
        if kind == "r"
        else torch.rand(4, 5, 1).to("cuda", of_columns)
        for kind in kinds
    ]
    assert usable(*given)
    found, expected = function(*given), function(*(t.double() for t in given))
    limit = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    for ours, theirs in zip(*(t if isinstance(t, tuple) else (t,) for t in (found, expected)), strict=True):
        scale = float(theirs.abs().max()) + 1e-6
        torch.testing.assert_close(ours.double() / scale, theirs / scale, rtol=0, atol=limit)


PICTURE = (17, 14)
Pair = tuple[int, int]


def geometries(test: Callable[..., None]) -> Callable[..., None]:
    """Kernels, strides, paddings and dilations, each with each."""
    for name, pairs in {
        "kernel": [(5, 5), (3, 2), (1, 1)],
        "stride": [(1, 1), (2, 2), (3, 1)],
        "padding": [(0, 0), (2, 1)],
        "dilation": [(1, 1), (2, 1)],
    }.items():
        test = pytest.mark.parametrize(name, pairs)(test)
    return test


@geometries
def test_fold(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> None:
    from refiner.core.kernels.fold import fold

    like = torch.zeros(6, 3, *PICTURE, device="cuda")
    columns = torch.randn_like(F.unfold(like, kernel, dilation, padding, stride))
    ours: Tensor = fold(columns, PICTURE, kernel, dilation, padding, stride)
    torch.testing.assert_close(ours, F.fold(columns, PICTURE, kernel, dilation, padding, stride))


@geometries
@pytest.mark.parametrize("victims", [(3, 3), (1, 3), (3, 1)])
def test_slopes_of_kernels(
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, victims: tuple[int, int]
) -> None:
    geometry = convolution.Geometry(stride, padding, dilation, PICTURE, kernel)
    x = torch.randn(victims[0], 6, 3, *PICTURE, device="cuda")
    y = torch.randn(victims[1], 6, 20, *geometry.result, device="cuda")
    expected = convolution._kernel(x.double(), y.double(), geometry)
    assert convolution._gathered(x, y) and not convolution._gathered(x.double(), y.double())
    for allowed, limit in ((False, 2e-6), (True, 2e-3)):
        with precision.tensor_float32(allowed):
            ours = convolution._kernel(x, y, geometry)
        assert float((ours - expected).norm() / expected.norm()) < limit
    half = convolution._kernel(x.bfloat16(), y.bfloat16(), geometry)
    assert half.dtype == torch.bfloat16
    assert float((half - expected).norm() / expected.norm()) < 1e-2


def test_slopes_of_more_kernels_than_a_grid_counts() -> None:
    geometry = convolution.Geometry((1, 1), (0, 0), (1, 1), (2, 2), (2, 2))
    x, y = torch.randn(2**16, 1, 1, 2, 2, device="cuda"), torch.randn(2**16, 1, 1, 1, 1, device="cuda")
    assert not convolution._gathered(x, y)
    assert convolution._gathered(x[1:], y[1:])
    with precision.tensor_float32(False):
        whole, all_but_one = convolution._kernel(x, y, geometry), convolution._kernel(x[1:], y[1:], geometry)
    torch.testing.assert_close(whole, x * y)
    torch.testing.assert_close(all_but_one, whole[1:])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_slopes_of_kernels_hide_no_broken_number(bad: float) -> None:
    x, y = torch.randn(2, 6, 3, 8, 8, device="cuda"), torch.randn(2, 6, 4, 8, 8, device="cuda")
    y[1, 5, 2, 4, 4] = bad
    geometry = convolution.Geometry((1, 1), (2, 2), (1, 1), (8, 8), (5, 5))
    with precision.tensor_float32(False):
        found = convolution._kernel(x, y, geometry)
    assert found[0].isfinite().all() and not found[1, 2].isfinite().any()
    assert found[1, [0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 5), (2, 128, 7, 7), (1, 1), (4, 3000)])
def test_parts_of_numbers(shape: tuple[int, ...]) -> None:
    t = torch.randn(shape, device="cuda") * 10 ** torch.randn(shape, device="cuda")
    rounded, both = precision.parts(t)
    for ours, plain in zip((rounded, both), precision.parts(t.cpu()), strict=True):
        assert torch.equal(ours.cpu(), plain)
    assert torch.equal(rounded, both[:, 0]) and torch.equal(both.sum(1), t)


@pytest.mark.parametrize("blocks", [1, 5, 128, 300])
def test_chacha(blocks: int) -> None:
    ids = torch.tensor([0, 1, -1, 2**31, 2**32 + 5, -(2**40), 2**62])
    key = noise.NoiseSource(seed=3).key
    for rounds in (12, 20):
        ours = noise._chacha(key.cuda(), ids.cuda(), blocks, rounds)
        assert torch.equal(ours.cpu(), noise._chacha(key, ids, blocks, rounds))


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_from_tf32_products_are_nearly_float32(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 8, 128, 16, 16, device="cuda")
    w = torch.randn(1, 192, 128, 3, 3, device="cuda")
    geometry = convolution.Geometry((stride, stride), (1, 1), (1, 1), (16, 16), (3, 3))
    y = torch.randn(1, 8, 192, *geometry.result, device="cuda")
    with precision.tensor_float32(False):
        for which, a in ((convolution._output, x), (convolution._input, y)):
            expected = which(a.double(), w.double(), geometry)
            errors = []
            for terms in (0, 2**62):
                monkeypatch.setattr(convolution, "_TERMS", terms)
                errors.append(float((which(a, w, geometry) - expected).norm() / expected.norm()))
            assert errors[0] != errors[1]  # two ways indeed
            # cuDNN's float32 is off by 6e-7.
            assert errors[0] < 5e-6
