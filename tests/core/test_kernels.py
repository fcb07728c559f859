"""The Triton kernels equal their plain twins: on a GPU, or without one in Triton's interpreter on the CPU."""

import itertools
import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.core import convolution, noise, norm_ops, precision
from refiner.core.kernels import kernels_available

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if not ON_GPU:
    # Triton reads it when it is imported. Its interpreter runs kernels on NumPy, for their results, not their
    # speed.
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton is not installed")

from refiner.core.kernels import chacha, conv_weight_grad, fold, norm, tf32_split  # noqa: E402

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU: on a CPU the plain twins run")

# The plain twin, its kernel, and its arguments: r for rows, c for one number per row.
NORM_FUNCTIONS = {
    "standardise": (lambda x: norm_ops.standardise(x, 1e-5), lambda x: norm.standardise(x, 1e-5), "r"),
    "standardise_vjp": (norm_ops.standardise_vjp, norm.standardise_vjp, "rrcc"),
    "standardise_vjp_vjp": (norm_ops.standardise_vjp_vjp, norm.standardise_vjp_vjp, "rrrcc"),
    "affine_vjp": (norm_ops.affine_vjp, norm.affine_vjp, "rrc"),
    "affine_vjp_vjp": (norm_ops.affine_vjp_vjp, norm.affine_vjp_vjp, "rccrrc"),
}


@pytest.mark.parametrize("name", NORM_FUNCTIONS)
@pytest.mark.parametrize("n", [1, 3, 16, 384, 2048, 8192] if ON_GPU else [1, 3, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_kernels_equal_the_plain_functions(name: str, n: int, dtype: torch.dtype) -> None:
    plain, kernel, arguments = NORM_FUNCTIONS[name]
    column_dtype = dtype if "affine" in name else torch.float32
    tensors = [
        (torch.randn(4, 5, n) + 1).to(DEVICE, dtype)
        if argument == "r"
        else torch.rand(4, 5, 1).to(DEVICE, column_dtype)
        for argument in arguments
    ]
    results, expected = kernel(*tensors), plain(*(t.double() for t in tensors))
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    for ours, exact in zip(*(t if isinstance(t, tuple) else (t,) for t in (results, expected)), strict=True):
        scale = float(exact.abs().max()) + 1e-6
        torch.testing.assert_close(ours.double() / scale, exact / scale, rtol=0, atol=tolerance)
    if ON_GPU:
        assert kernels_available(*tensors)
        dispatched = plain(*tensors)
        for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (results, dispatched)), strict=True):
            assert torch.equal(a, b)


IMAGE = (17, 14)
Pair = tuple[int, int]
SIZES = ([(5, 5), (3, 2), (1, 1)], [(1, 1), (2, 2), (3, 1)], [(0, 0), (2, 1)], [(1, 1), (2, 1)])
# Every combination on a GPU; in the interpreter, which takes a second for each, every size once.
COMBINATIONS = [*itertools.product(*SIZES)] if ON_GPU else [[s[i % len(s)] for s in SIZES] for i in range(3)]
geometries = pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), COMBINATIONS)


@geometries
def test_fold_equals_pytorchs(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> None:
    like = torch.zeros(6, 3, *IMAGE, device=DEVICE)
    columns = torch.randn_like(F.unfold(like, kernel, dilation, padding, stride))
    ours: Tensor = fold.fold(columns, IMAGE, kernel, dilation, padding, stride)
    torch.testing.assert_close(ours, F.fold(columns, IMAGE, kernel, dilation, padding, stride))


@geometries
@pytest.mark.parametrize("victims", [(3, 3), (1, 3), (3, 1)])
def test_conv_weight_grad_equals_the_plain_function(
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, victims: tuple[int, int]
) -> None:
    geometry = convolution.Geometry(stride, padding, dilation, IMAGE, kernel)
    x = torch.randn(victims[0], 6, 3, *IMAGE, device=DEVICE)
    y = torch.randn(victims[1], 6, 20, *geometry.output, device=DEVICE)
    expected = convolution.conv_weight_grad(x.double(), y.double(), geometry)
    for exact, tolerance in ((True, 2e-6), (False, 2e-3)):
        ours = conv_weight_grad.conv_weight_grad(x, y, kernel, dilation, padding, stride, exact)
        assert float((ours - expected).norm() / expected.norm()) < tolerance
    if ON_GPU:  # the interpreter's product of bfloat16 matrices is wrong
        assert convolution._use_kernel(x, y) and not convolution._use_kernel(x.double(), y.double())
        half = convolution.conv_weight_grad(x.bfloat16(), y.bfloat16(), geometry)
        assert half.dtype == torch.bfloat16
        assert float((half - expected).norm() / expected.norm()) < 1e-2


@needs_gpu
def test_conv_weight_grad_works_for_more_victims_than_a_grid_has_room_for() -> None:
    geometry = convolution.Geometry((1, 1), (0, 0), (1, 1), (2, 2), (2, 2))
    x, y = torch.randn(2**16, 1, 1, 2, 2, device="cuda"), torch.randn(2**16, 1, 1, 1, 1, device="cuda")
    assert not convolution._use_kernel(x, y)
    assert convolution._use_kernel(x[1:], y[1:])
    with precision.tensor_float32(False):
        whole = convolution.conv_weight_grad(x, y, geometry)
        all_but_one = convolution.conv_weight_grad(x[1:], y[1:], geometry)
    torch.testing.assert_close(whole, x * y)
    torch.testing.assert_close(all_but_one, whole[1:])


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_conv_weight_grad_passes_nan_and_infinity_on(bad: float) -> None:
    x, y = torch.randn(2, 6, 3, 8, 8, device=DEVICE), torch.randn(2, 6, 4, 8, 8, device=DEVICE)
    y[1, 5, 2, 4, 4] = bad
    result = conv_weight_grad.conv_weight_grad(x, y, (5, 5), (1, 1), (2, 2), (1, 1), True)
    assert result[0].isfinite().all() and not result[1, 2].isfinite().any()
    assert result[1, [0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 5), (2, 128, 7, 7), (1, 1), (4, 3000)])
def test_tf32_split_equals_the_plain_function(shape: tuple[int, ...]) -> None:
    t = torch.randn(shape, device=DEVICE) * 10 ** torch.randn(shape, device=DEVICE)
    rounded, both = tf32_split.split_tf32(t)
    for ours, plain in zip((rounded, both), precision.split_tf32(t.cpu()), strict=True):
        assert torch.equal(ours.cpu(), plain)
    assert torch.equal(rounded, both[:, 0]) and torch.equal(both.sum(1), t)


IDS = [0, 1, -1, 2**31, 2**32 + 5, -(2**40), 2**62]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("blocks", [1, 5, 128, 300] if ON_GPU else [1, 130])
def test_chacha_equals_the_plain_function(blocks: int) -> None:
    ids = torch.tensor(IDS if ON_GPU else IDS[4:6])
    key = noise.NoiseSource(seed=3).key
    for rounds in (12, 20) if ON_GPU else (4,):
        ours = chacha.chacha(key.to(DEVICE), ids.to(DEVICE), blocks, rounds)
        assert torch.equal(ours.cpu(), noise._chacha(key, ids, blocks, rounds))
        assert torch.equal(ours, noise._chacha(key.to(DEVICE), ids.to(DEVICE), blocks, rounds))


@needs_gpu
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_from_tf32_products_are_nearly_float32(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 8, 128, 16, 16, device="cuda")
    w = torch.randn(1, 192, 128, 3, 3, device="cuda")
    geometry = convolution.Geometry((stride, stride), (1, 1), (1, 1), (16, 16), (3, 3))
    y = torch.randn(1, 8, 192, *geometry.output, device="cuda")
    with precision.tensor_float32(False):
        for function, a in ((convolution.conv_output, x), (convolution.conv_input_grad, y)):
            expected = function(a.double(), w.double(), geometry)
            errors = []
            for terms in (0, 2**62):
                monkeypatch.setattr(convolution, "_MIN_TF32_TERMS", terms)
                errors.append(float((function(a, w, geometry) - expected).norm() / expected.norm()))
            assert errors[0] != errors[1]  # the two ways differ
            # cuDNN's float32 is off by 6e-7.
            assert errors[0] < 5e-6
