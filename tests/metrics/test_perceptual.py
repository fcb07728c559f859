"""LPIPS: published examples, a plain reference with unrounded weights, sizes, features, weight files."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from refiner.data import load_image, load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import features, lpips
from refiner.metrics.perceptual import BUNDLED, PerceptualNetwork

IMAGES = load_sample().images[:12]


def noisy(images: Tensor, deviation: float, seed: int = 0) -> Tensor:
    draws = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + deviation * draws).clamp(0, 1)


@pytest.mark.parametrize(("name", "expected"), [("p0", 0.722), ("p1", 0.138)])
def test_the_published_examples_are_reproduced(
    data_dir: Callable[[str], Path], name: str, expected: float
) -> None:
    folder = data_dir("lpips_ex_ref.png")
    pair = [load_image(folder / f"lpips_ex_{which}.png")[None] for which in (name, "ref")]
    assert lpips(*pair).item() == pytest.approx(expected, abs=0.001)


def reference(arrays: dict[str, np.ndarray], a: Tensor, b: Tensor) -> Tensor:
    """LPIPS layer by layer as it is published, for images in 0..1, with the given weights."""
    trunk = nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    ).requires_grad_(False)
    trunk.load_state_dict(
        {
            name.removeprefix("features."): torch.from_numpy(value)
            for name, value in arrays.items()
            if name.startswith("features.")
        }
    )
    shift = torch.tensor([-0.030, -0.088, -0.188])[:, None, None]
    scale = torch.tensor([0.458, 0.448, 0.450])[:, None, None]
    total = torch.zeros(len(a))
    one, two = ((2 * images - 1 - shift) / scale for images in (a, b))
    head = 0
    for index, layer in enumerate(trunk):
        one, two = layer(one), layer(two)
        if index in (1, 4, 7, 9, 11):
            first, second = (h / ((h**2).sum(1, keepdim=True).sqrt() + 1e-10) for h in (one, two))
            weights = torch.from_numpy(arrays[f"lin{head}.model.1.weight"])
            total += F.conv2d((first - second) ** 2, weights).mean((1, 2, 3))
            head += 1
    return total


def bundled_arrays() -> dict[str, np.ndarray]:
    """The bundled weights under their published names."""
    weights = PerceptualNetwork.bundled().state_dict()
    arrays = {}
    for number, index in enumerate((0, 3, 6, 8, 10)):
        for kind in ("weight", "bias"):
            arrays[f"features.{index}.{kind}"] = weights[f"conv{number + 1}.{kind}"].numpy()
        arrays[f"lin{number}.model.1.weight"] = weights[f"head{number + 1}"].numpy()[None, :, None, None]
    return arrays


def compared(arrays: dict[str, np.ndarray], size: int) -> tuple[Tensor, Tensor]:
    """Ours and the reference, on noisy and on unrelated images."""
    reconstructed = torch.cat([noisy(IMAGES[:6], 0.1), IMAGES[:6]])
    original = torch.cat([IMAGES[:6], IMAGES[6:]])
    a, b = (F.interpolate(p, (size, size), mode="bilinear") for p in (reconstructed, original))
    return lpips(a, b), reference(arrays, a, b)


@pytest.mark.parametrize("size", [31, 32, 64])
def test_scores_match_a_plain_reference(size: int) -> None:
    torch.testing.assert_close(*compared(bundled_arrays(), size), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [32, 64])
def test_half_precision_weights_change_little(data_dir: Callable[[str], Path], size: int) -> None:
    with np.load(data_dir("lpips_alexnet_fp32.npz") / "lpips_alexnet_fp32.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    assert arrays.keys() == bundled_arrays().keys()
    torch.testing.assert_close(*compared(arrays, size), rtol=2e-3, atol=2e-4)


def test_the_bundled_weights_are_small_and_frozen() -> None:
    assert BUNDLED.stat().st_size <= 5e6
    assert BUNDLED.with_suffix(".LICENSE").is_file()
    network = PerceptualNetwork.bundled()
    assert network is PerceptualNetwork.bundled("cpu")
    assert not network.training
    assert sum(p.numel() for p in network.parameters()) == 2_470_848
    assert all(not p.requires_grad and p.dtype == torch.float32 for p in network.parameters())
    # Their square root is taken.
    assert all((p >= 0).all() for name, p in network.named_parameters() if name.startswith("head"))


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (31, 64), (64, 48)])
def test_the_squared_distance_of_features_is_lpips(size: tuple[int, int]) -> None:
    a, b = (F.interpolate(p, size, mode="bilinear") for p in (noisy(IMAGES, 0.1), IMAGES))
    distance = (features(a) - features(b)).square().sum(1)
    torch.testing.assert_close(lpips(a, b), distance)
    assert (distance > 0).all()


def test_images_below_31_pixels_are_enlarged_to_32() -> None:
    a, b = (F.interpolate(p, (28, 35), mode="bilinear") for p in (noisy(IMAGES, 0.1), IMAGES))
    larger = [F.interpolate(p, (32, 40), mode="bilinear") for p in (a, b)]
    torch.testing.assert_close(lpips(a, b), lpips(*larger))
    assert features(IMAGES[..., :31, :31]).shape == (12, 5760)


def test_grey_images_are_repeated_to_three_channels() -> None:
    a, b = (p.mean(1, keepdim=True) for p in (noisy(IMAGES, 0.1), IMAGES))
    torch.testing.assert_close(lpips(a, b), lpips(a.expand(-1, 3, -1, -1), b.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize("shape", [(2, 32, 32), (4, 32, 32), (3, 15, 32), (3, 32, 15)])
def test_images_of_another_size_raise(shape: tuple[int, ...]) -> None:
    images = torch.zeros(1, *shape)
    for call in (lambda: lpips(images, images), lambda: features(images)):
        with pytest.raises(DataError) as caught:
            call()
        assert str(caught.value) == (
            f"image shape = {shape}: expected 1 or 3 channels and at least 16 pixels per side for LPIPS"
        )


def test_scores_do_not_depend_on_the_chunk() -> None:
    a, b = noisy(IMAGES, 0.1), IMAGES
    torch.testing.assert_close(lpips(a, b, chunk=5), lpips(a, b))
    torch.testing.assert_close(features(a, chunk=5), features(a))
    for call in (lambda: lpips(a, b, chunk=0), lambda: features(a, chunk=0)):
        with pytest.raises(SettingError, match="chunk = 0: expected an integer ≥ 1"):
            call()


def test_scores_are_float32_without_a_graph() -> None:
    scores = lpips(IMAGES.double().requires_grad_(), noisy(IMAGES, 0.1))
    assert scores.dtype == torch.float32 and not scores.requires_grad


@settings(max_examples=10)
@given(st.integers(0, 2**31), st.floats(0.02, 0.2), st.floats(2, 4))
def test_lpips_is_symmetric_and_grows_with_noise(seed: int, deviation: float, factor: float) -> None:
    original = IMAGES[:4]
    less, more = (noisy(original, d, seed) for d in (deviation, deviation * factor))
    assert torch.equal(lpips(original, original), torch.zeros(4))
    torch.testing.assert_close(lpips(less, original), lpips(original, less))
    assert lpips(less, original).mean() < lpips(more, original).mean()


def test_positions_with_zero_features_are_not_nan() -> None:
    network = PerceptualNetwork().requires_grad_(False)
    for weights in network.parameters():
        weights.zero_()
    assert torch.equal(network(IMAGES[:2]), torch.zeros(2, 5760))


def test_a_bad_file_raises_one_line(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    weights = PerceptualNetwork.bundled().state_dict()
    save_file({name: w for name, w in weights.items() if name != "head3"}, path)
    contents = {"too few": path.read_bytes(), "garbage": b"garbage" * 100, "cut": BUNDLED.read_bytes()[:-9]}
    for kind, content in contents.items():
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            PerceptualNetwork.load(path)
        pattern = rf"weights = '{re.escape(str(path))}': not those of LPIPS \(.+\)"
        assert re.fullmatch(pattern, str(caught.value)), kind
    with pytest.raises(DataError, match="not those of LPIPS"):
        PerceptualNetwork.load(tmp_path / "absent")
