"""The evaluation network: size, valid and invalid images, weight files, the bfloat16 copy."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from refiner.data import load_sample
from refiner.defenses.refine.privacy import _bfloat16_copy
from refiner.errors import DataError, SettingError
from refiner.evaluation import EvaluationNetwork, mix_with_noise
from refiner.evaluation.network import BUNDLED


@pytest.fixture(scope="module")
def images() -> Tensor:
    return load_sample().images[:10]


def test_the_number_of_parameters() -> None:
    assert sum(p.numel() for p in EvaluationNetwork().parameters()) == 1_479_425


def test_the_bundled_weights_are_small_and_frozen() -> None:
    assert BUNDLED.stat().st_size <= 3.2e6
    network = EvaluationNetwork.bundled()
    assert network is EvaluationNetwork.bundled("cpu")
    assert not network.training
    assert all(not p.requires_grad and p.dtype == torch.float32 for p in network.parameters())
    assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(28, 28), (33, 57), (64, 64), (224, 224), (28, 224)])
def test_all_sizes_and_channels_are_scored(size: tuple[int, int], channels: int, images: Tensor) -> None:
    network = EvaluationNetwork.bundled()
    clean = F.interpolate(images[:2], size, mode="bilinear", antialias=True).clamp(0, 1)
    noise = torch.rand(2, channels, *size)
    if channels == 1:
        clean = clean.mean(1, keepdim=True)
    low, high = network.score(clean), network.score(noise)
    assert low.shape == high.shape == (2,)
    assert low.max() < 0.1
    assert high.min() > 0.9


def test_grey_images_are_repeated_to_three_channels(images: Tensor) -> None:
    grey = images.mean(1, keepdim=True)
    network = EvaluationNetwork.bundled()
    assert torch.equal(network(grey), network(grey.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize("axes", [(), (1,), (6,), (2, 3), (1, 2, 3)])
def test_leading_axes_are_preserved(axes: tuple[int, ...], images: Tensor) -> None:
    network = EvaluationNetwork.bundled()
    count = torch.Size(axes).numel()
    mixed = mix_with_noise(
        images[:count], torch.linspace(0.1, 0.9, count)[:, None, None, None], torch.Generator()
    )
    ratios = network(mixed.view(*axes, 3, 32, 32))
    assert ratios.shape == axes
    torch.testing.assert_close(ratios.flatten(), torch.stack([network(image[None])[0] for image in mixed]))


def test_scores_do_not_depend_on_the_batch(images: Tensor) -> None:
    network = EvaluationNetwork.bundled()
    whole = network.score(images)
    torch.testing.assert_close(network.score(images, batch=7), whole)
    assert not whole.requires_grad


def test_the_network_is_differentiable_in_the_image(images: Tensor) -> None:
    point = images[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(EvaluationNetwork.bundled()(point).sum(), point)
    assert gradient.isfinite().all() and gradient.abs().max() > 0


@pytest.mark.parametrize(
    "shape", [(3, 27, 32), (3, 32, 225), (2, 32, 32), (4, 32, 32), (0, 32, 32), (3, 0, 32), (32, 32), (5,)]
)
def test_images_of_another_shape_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as caught:
        EvaluationNetwork.check_shape(shape)
    assert str(caught.value) == (
        f"image shape = {shape}: expected 1 or 3 channels and 28 to 224 pixels per side "
        "for the evaluation network"
    )


@pytest.mark.parametrize("shape", [(2, 3, 27, 32), (2, 2, 32, 32)])
def test_score_raises_for_images_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=re.escape(f"image shape = {shape[1:]}: ")):
        EvaluationNetwork.bundled().score(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3, 32, 32), (0, 3, 32, 32), (1, 2, 3, 32, 32)])
def test_score_needs_a_batch_axis(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as caught:
        EvaluationNetwork.bundled().score(torch.zeros(shape))
    assert str(caught.value) == f"images of shape {list(shape)}: expected [N, C, H, W] with N ≥ 1"


@pytest.mark.parametrize("half", [False, True])
def test_weights_are_saved_and_loaded(half: bool, tmp_path: Path, images: Tensor) -> None:
    network, path = EvaluationNetwork(), tmp_path / "weights"
    network.save(path, half=half)
    back = EvaluationNetwork.load(path)
    for name, value in network.state_dict().items():
        expected = value.half().float() if half else value
        assert torch.equal(back.state_dict()[name], expected)
        assert back.state_dict()[name].dtype == torch.float32
    assert not any(p.requires_grad for p in back.parameters())
    assert path.stat().st_size < (3.2e6 if half else 6.0e6)
    torch.testing.assert_close(back.score(images), network.score(images), rtol=0, atol=1e-3)
    # Saving leaves the network as it was.
    assert all(p.dtype == torch.float32 and p.requires_grad for p in network.parameters())


def test_channels_last_weights_are_saved(tmp_path: Path) -> None:
    network = EvaluationNetwork().to(memory_format=torch.channels_last)
    network.save(tmp_path / "weights")
    assert torch.equal(EvaluationNetwork.load(tmp_path / "weights").conv2.weight, network.conv2.weight)


def bad_files(path: Path) -> dict[str, bytes]:
    network = EvaluationNetwork()
    network.save(path)
    weights = network.state_dict()
    contents = {"garbage": b"garbage" * 100, "empty": b"", "truncated": path.read_bytes()[:-10]}
    changed = {
        "a weight too few": {k: v for k, v in weights.items() if k != "linear.bias"},
        "a weight too many": weights | {"other": torch.zeros(1)},
        "another shape": weights | {"linear.bias": torch.zeros(2)},
        "no number": weights | {"linear.bias": torch.full((1,), torch.nan)},
        "infinity in half precision": weights | {"linear.bias": torch.full((1,), torch.inf).half()},
    }
    for name, tensors in changed.items():
        save_file(tensors, path)
        contents[name] = path.read_bytes()
    return contents


def test_a_bad_file_raises_one_line(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    for kind, content in bad_files(path).items():
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            EvaluationNetwork.load(path)
        pattern = rf"weights = '{re.escape(str(path))}': not an evaluation network \(.+\)"
        assert re.fullmatch(pattern, str(caught.value)), kind
    with pytest.raises(DataError, match="not an evaluation network"):
        EvaluationNetwork.load(tmp_path / "absent")


def in_bfloat16(bfloat16_copy: EvaluationNetwork, images: Tensor) -> Tensor:
    """The bfloat16 copy with sums in float32, which is faster on a CPU without bfloat16."""
    hidden = images.to(torch.bfloat16)
    for layer in (bfloat16_copy.conv1, bfloat16_copy.conv2, bfloat16_copy.conv3):
        assert layer.weight.dtype == torch.bfloat16 and layer.bias is not None
        out = F.conv2d(hidden.float(), layer.weight.float(), layer.bias.float(), stride=2, padding=1)
        hidden = torch.relu(out.to(torch.bfloat16))
    return torch.sigmoid(bfloat16_copy.linear(hidden.float().mean((2, 3))))[:, 0]


@pytest.mark.processes
def test_the_bfloat16_copy_has_nearly_the_same_scores(images: Tensor) -> None:
    network = EvaluationNetwork.bundled()
    weights = copy.deepcopy(network.state_dict())
    bfloat16_copy = _bfloat16_copy(network)
    ratios = torch.linspace(0, 1, 11).repeat_interleave(len(images))[:, None, None, None]
    mixed = mix_with_noise(images.repeat(11, 1, 1, 1), ratios, torch.Generator().manual_seed(0))
    exact, rounded = network(mixed), in_bfloat16(bfloat16_copy, mixed)
    assert 0 < float((rounded - exact).abs().max()) <= 0.01
    rows = slice(0, None, 60)
    scores = bfloat16_copy(mixed[rows].to(torch.bfloat16, memory_format=torch.channels_last))
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, rounded[rows], rtol=0, atol=1e-3)
    assert float((scores - exact[rows]).abs().max()) <= 0.01
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


IMAGES = torch.rand(2, 3, 32, 32)
WRONG: list[tuple[object, str]] = [
    ([[0.5]], "images = list: expected uint8 or floating-point images [N, C, H, W]"),
    (None, "images = NoneType: expected uint8 or floating-point images [N, C, H, W]"),
    (
        IMAGES.long(),
        "images = torch.int64 [2, 3, 32, 32]: expected uint8 or floating-point images [N, C, H, W]",
    ),
    (
        IMAGES.to_sparse(),
        "images = torch.sparse_coo torch.float32 [2, 3, 32, 32]: "
        "expected uint8 or floating-point images [N, C, H, W]",
    ),
    (IMAGES.byte(), "images of torch.uint8: expected torch.float32 in 0..1 like the network's weights"),
    (
        IMAGES.double(),
        "images of torch.float64: expected torch.float32 in 0..1 like the network's weights",
    ),
    (IMAGES.to("meta"), "images on meta: expected the network's device, cpu"),
    (IMAGES / 0, "images: contain NaN or infinity"),
    (torch.where(IMAGES > 0.5, torch.nan, IMAGES), "images: contain NaN or infinity"),
    (torch.arange(256.0).repeat(12).view(1, 3, 32, 32), "images: values in [0, 255], expected [0, 1]"),
    (
        (-1 - torch.arange(256.0)).repeat(12).view(1, 3, 32, 32),
        "images: values in [-256, -1], expected [0, 1]",
    ),
]


@pytest.mark.parametrize(("images", "message"), WRONG)
def test_invalid_images_raise(images: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        EvaluationNetwork.bundled().score(images)
    assert str(caught.value) == message


def test_unclamped_images_are_scored() -> None:
    """Refined images exceed their range by several times."""
    assert EvaluationNetwork.bundled().score(8 * IMAGES - 4).shape == (2,)


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, None])
def test_a_wrong_batch_raises_one_line(batch: Any) -> None:
    with pytest.raises(SettingError) as caught:
        EvaluationNetwork.bundled().score(IMAGES, batch=batch)
    assert str(caught.value) == f"batch = {batch!r}: expected an integer ≥ 1"


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")),
        "cuda:99",
        "nowhere",
        7.5,
    ],
)
def test_an_unavailable_device_raises(device: Any) -> None:
    with pytest.raises(DataError) as caught:
        EvaluationNetwork.bundled(device)
    assert re.fullmatch(rf"device = {device!r}: not available here \(.+\)", str(caught.value))


@pytest.mark.parametrize(("value", "half"), [(torch.nan, False), (torch.inf, False), (1e6, True)])
def test_weights_that_are_not_finite_are_not_written(value: float, half: bool, tmp_path: Path) -> None:
    network = EvaluationNetwork()
    torch.nn.init.constant_(network.linear.bias, value)
    with pytest.raises(DataError) as caught:
        network.save(tmp_path / "weights", half=half)
    precision = " in half precision" if half else ""
    assert str(caught.value) == f"weights: linear.bias is not finite{precision}, nothing was written"
    assert not list(tmp_path.iterdir())
