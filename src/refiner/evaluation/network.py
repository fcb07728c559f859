"""The evaluation network D, which estimates how much of an image is noise (Section 3.3 of the paper)."""

import math
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from refiner import checks
from refiner.core.input_checks import describe_tensor, is_dense
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.weights import load_frozen, resolve_device

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "evaluation_network.safetensors"
MIN_SIDE, MAX_SIDE = 28, 224
# By how much pixels may exceed 0..1. Interpolation exceeds it by rounding. Refined images are not clamped and
# exceed it by several times their range, or by the strength of their noise; images in 0..255 by even more.
_ROUNDING, _UNCLAMPED = 1e-4, 100.0


class EvaluationNetwork(nn.Module):
    """Estimates the noise ratio of an image: 0 for a clean image, 1 for pure noise.

    Three strided convolutions, the mean over all positions, one linear layer. The mean before the linear
    layer makes the weights independent of the size, from 28 to 224 pixels per side; a grey image is repeated
    to three channels.

    >>> network = EvaluationNetwork.bundled()
    >>> noise = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> bool((network(noise) > 0.9).all())
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 128, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(128, 256, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(256, 512, 3, stride=2, padding=1)
        self.linear = nn.Linear(512, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the noise ratio of each image; differentiable, and without checks.

        Args:
            images: `[..., C, H, W]` in 0..1.

        Returns:
            `[...]` in 0..1.
        """
        flat = images.reshape(-1, *images.shape[-3:])
        if flat.shape[1] == 1:
            flat = flat.expand(-1, 3, -1, -1)
        hidden = torch.relu(self.conv1(flat))
        hidden = torch.relu(self.conv2(hidden))
        hidden = torch.relu(self.conv3(hidden))
        # The mean and the linear layer have full precision even if the convolutions are in bfloat16.
        logits: Tensor = self.linear(hidden.mean((2, 3), dtype=self.linear.weight.dtype))
        return torch.sigmoid(logits).view(images.shape[:-3])

    @staticmethod
    def check_shape(shape: tuple[int, ...]) -> None:
        """Raise unless the network takes images of this shape.

        Args:
            shape: `[..., C, H, W]`.

        Raises:
            DataError: Not 1 or 3 channels, or not 28 to 224 pixels per side.
        """
        fits = len(shape) >= 3 and shape[-3] in (1, 3) and all(MIN_SIDE <= s <= MAX_SIDE for s in shape[-2:])
        if not fits:
            expected = (
                f"1 or 3 channels and {MIN_SIDE} to {MAX_SIDE} pixels per side for the evaluation network"
            )
            raise DataError(field="image shape", value=tuple(shape[-3:]), expected=expected)

    @classmethod
    def check_images(cls, images: Tensor) -> None:
        """Raise unless `images` are a batch that the network takes.

        Args:
            images: `[N, C, H, W]`, N ≥ 1: uint8 in 0..255, or floats in 0..1.

        Raises:
            DataError: The images have another type, shape or range.

        >>> EvaluationNetwork.check_images(torch.full((1, 3, 32, 32), 255.0))
        Traceback (most recent call last):
        refiner.errors.DataError: images: values in [255, 255], expected [0, 1]
        """
        cls._check_values(images, _ROUNDING)

    @classmethod
    def _check_values(cls, images: Tensor, excess: float) -> None:
        """Raise unless `images` are valid; floats may exceed 0..1 by `excess`."""
        if not is_dense(images) or not (images.is_floating_point() or images.dtype == torch.uint8):
            raise _wrong_images(f"= {describe_tensor(images)}", "uint8 or floating-point images [N, C, H, W]")
        if images.ndim != 4 or not len(images):
            raise _wrong_images(f"of shape {list(images.shape)}", "[N, C, H, W] with N ≥ 1")
        cls.check_shape(tuple(images.shape))
        if images.dtype == torch.uint8:
            return
        low, high = (float(end) for end in torch.aminmax(images.detach()))
        if not math.isfinite(low) or not math.isfinite(high):
            raise DataError(
                "images: contain NaN or infinity", field="images", value=images, expected="finite values"
            )
        if low < -excess or high > 1 + excess:
            raise DataError(
                f"images: values in [{low:.4g}, {high:.4g}], expected [0, 1]",
                field="images",
                value=f"values in [{low:.4g}, {high:.4g}]",
                expected="[0, 1]",
            )

    @torch.no_grad()
    def score(self, images: Tensor, batch: int = 500) -> Tensor:
        """Return the noise ratio of each image, checked and without gradients.

        Args:
            images: `[N, C, H, W]` in the network's dtype, on its device, in 0..1. Refined images that were
                not clamped are accepted too.
            batch: Images at a time.

        Returns:
            `[N]` in 0..1.

        Raises:
            DataError: The images have another type, shape, range or device.
        """
        checks.integer("batch", batch, 1)
        weight = self.conv1.weight
        if isinstance(images, Tensor) and images.device != weight.device:
            raise _wrong_images(f"on {images.device}", f"the network's device, {weight.device}")
        self._check_values(images, _UNCLAMPED)
        if images.dtype != weight.dtype:
            raise _wrong_images(f"of {images.dtype}", f"{weight.dtype} in 0..1 like the network's weights")
        return torch.cat([self(part) for part in torch.split(images, batch)])

    def save(self, path: Path, *, half: bool = False) -> None:
        """Write the weights to a safetensors file.

        Args:
            path: The file.
            half: Whether to write half precision.

        Raises:
            DataError: A weight is not finite; nothing is written.
        """
        weights = {
            name: (w.half() if half else w).detach().cpu().contiguous()
            for name, w in self.state_dict().items()
        }
        broken = [name for name, w in weights.items() if not bool(w.isfinite().all())]
        if broken:
            precision = " in half precision" if half else ""
            raise DataError(
                f"weights: {broken[0]} is not finite{precision}, nothing was written",
                field=broken[0],
                expected="finite weights",
            )
        write_atomically(path, save(weights))

    @classmethod
    def load(cls, path: Path) -> "EvaluationNetwork":
        """Return the network with weights written by `save`, in float32 and frozen.

        Args:
            path: A file that `save` wrote.

        Returns:
            The network, in `eval` mode.

        Raises:
            DataError: The file is missing or does not contain an evaluation network.
        """
        return load_frozen(path, lambda weights: cls(), "an evaluation network")

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "EvaluationNetwork":
        """Return the bundled network, trained on Tiny-ImageNet; one shared copy for each device.

        Args:
            device: Where the network is needed.

        Returns:
            The network, frozen and in `eval` mode.

        Raises:
            DataError: There is no such device here.
        """
        return _bundled(resolve_device(device))


def _wrong_images(actual: str, expected: str) -> DataError:
    return DataError(
        f"images {actual}: expected {expected}",
        field="images",
        value=actual.removeprefix("= "),
        expected=expected,
    )


@cache
def _bundled(device: torch.device) -> EvaluationNetwork:
    return EvaluationNetwork.load(BUNDLED).to(device)
