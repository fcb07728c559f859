"""Every metric raises the same one-line errors for invalid images."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from refiner.errors import DataError
from refiner.metrics import features, identify, lpips, mse, noise_ratio, psnr, score_all, ssim
from refiner.metrics.image_checks import check_images, check_pair

GOOD = torch.full((2, 3, 32, 32), 0.5)
PAIRED = (mse, psnr, ssim, lpips, score_all, identify)
SINGLE = (features, noise_ratio)


def with_value(value: float, image: int = 1) -> Tensor:
    images = GOOD.clone()
    images[image, 0, 3, 4] = value
    return images


BAD = {
    "uint8": (GOOD.to(torch.uint8), "torch.uint8, expected a float32 or float64 tensor in 0..1"),
    "half": (GOOD.half(), "torch.float16, expected a float32 or float64 tensor in 0..1"),
    "no tensor": ([[0.5]], "list, expected a float32 or float64 tensor in 0..1"),
    "one image": (GOOD[0], "shape [3, 32, 32], expected [N, C, H, W] with N ≥ 1"),
    "no image": (GOOD[:0], "shape [0, 3, 32, 32], expected [N, C, H, W] with N ≥ 1"),
    "no pixel": (GOOD[..., :0], "shape [2, 3, 32, 0], expected [N, C, H, W] with N ≥ 1"),
    "NaN": (with_value(torch.nan), "NaN or infinity in 1 of 2 images, the first is number 1"),
    "infinity": (with_value(torch.inf, 0), "NaN or infinity in 1 of 2 images, the first is number 0"),
    "negative": (with_value(-0.5), "values in [-0.5, 0.5], expected [0, 1]; clamp or rescale first"),
    "bytes": (GOOD * 255, "values in [127.5, 127.5], expected [0, 1]; clamp or rescale first"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("metric", PAIRED)
def test_invalid_images_raise_as_reconstruction_and_original(
    metric: Callable[..., object], kind: str
) -> None:
    images, message = BAD[kind]
    with pytest.raises(DataError) as caught:
        metric(images, GOOD)
    assert str(caught.value) == f"reconstructed: {message}"
    with pytest.raises(DataError) as caught:
        metric(GOOD, images)
    assert str(caught.value) == f"original: {message}"


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("metric", SINGLE)
def test_invalid_images_raise_in_metrics_of_one_image(metric: Callable[..., object], kind: str) -> None:
    images, message = BAD[kind]
    with pytest.raises(DataError) as caught:
        metric(images)
    assert str(caught.value) == f"images: {message}"


@pytest.mark.parametrize("metric", PAIRED)
@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (2, 1, 32, 32), (2, 3, 32, 33)])
def test_shapes_are_not_broadcast(metric: Callable[..., object], shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as caught:
        metric(torch.zeros(shape), GOOD)
    assert (
        str(caught.value) == f"reconstructed: shape {list(shape)}, expected [2, 3, 32, 32] like the originals"
    )


def test_different_devices_raise() -> None:
    with pytest.raises(DataError, match="on meta, expected cpu like the originals"):
        # A real meta tensor has no values for the other checks.
        check_pair(_OnMeta(GOOD), GOOD)


class _OnMeta(Tensor):
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("meta")


def test_rounding_beyond_the_range_is_accepted() -> None:
    check_images("original", torch.tensor([-5e-5, 1 + 5e-5]).view(2, 1, 1, 1))
    with pytest.raises(DataError):
        check_images("original", torch.tensor([0.0, 1 + 5e-4]).view(2, 1, 1, 1))


def test_dtypes_are_promoted_and_graphs_detached() -> None:
    a, b = check_pair(GOOD.clone().requires_grad_(), GOOD.double())
    assert a.dtype == b.dtype == torch.float64
    assert not a.requires_grad
    assert mse(GOOD.double(), GOOD).dtype == torch.float64
    assert mse(GOOD, GOOD).dtype == torch.float32
