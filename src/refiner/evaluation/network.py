"""The evaluation network D: which share of an image is noise? (Section 3.3 and "Detailed Settings".)"""

import math
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from refiner import checks
from refiner.core.input_checks import dense, kind
from refiner.errors import DataError
from refiner.files import write_whole
from refiner.weights import available, frozen

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "evaluation_network.safetensors"
SMALLEST, LARGEST = 28, 224
# Interpolation oversteps 0..1 by rounding. Refined images are not clamped and overstep it by several times
# their range, or by the strength of their noise; images in 0..255 by more.
SLACK, FAR = 1e-4, 100.0


class EvaluationNetwork(nn.Module):
    """Three strided convolutions, the mean over all positions, one linear layer: a noise ratio in 0..1.

    The mean before the linear layer lets one set of weights take every size from 28 to 224 pixels;
    a grey image is shown to the network as three equal channels.

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
        """Noise ratios `[...]` of images `[..., C, H, W]` with pixels in 0..1."""
        flat = images.reshape(-1, *images.shape[-3:])
        if flat.shape[1] == 1:
            flat = flat.expand(-1, 3, -1, -1)
        hidden = torch.relu(self.conv1(flat))
        hidden = torch.relu(self.conv2(hidden))
        hidden = torch.relu(self.conv3(hidden))
        # The mean and the linear layer keep full precision where the convolutions are in bfloat16.
        logits: Tensor = self.linear(hidden.mean((2, 3), dtype=self.linear.weight.dtype))
        return torch.sigmoid(logits).view(images.shape[:-3])

    @staticmethod
    def check(shape: tuple[int, ...]) -> None:
        """Refuse images `[..., C, H, W]` that the network was not made for."""
        fits = len(shape) >= 3 and shape[-3] in (1, 3) and all(SMALLEST <= s <= LARGEST for s in shape[-2:])
        if not fits:
            raise DataError(
                f"image shape = {tuple(shape[-3:])}: the evaluation network takes 1 or 3 channels "
                f"and {SMALLEST} to {LARGEST} pixels a side"
            )

    @classmethod
    def check_many(cls, images: Tensor) -> None:
        """Refuse anything but a batch `[N, C, H, W]` of at least one such image, in 0..255 or 0..1.

        >>> EvaluationNetwork.check_many(torch.full((1, 3, 32, 32), 255.0))
        Traceback (most recent call last):
        refiner.errors.DataError: images: values in [255, 255], expected [0, 1]
        """
        cls._check_values(images, SLACK)

    @classmethod
    def _check_values(cls, images: Tensor, slack: float) -> None:
        if not dense(images) or not (images.is_floating_point() or images.dtype == torch.uint8):
            raise DataError(f"images = {kind(images)}: expected uint8 or floating-point images [N, C, H, W]")
        if images.ndim != 4 or not len(images):
            raise DataError(f"images of shape {list(images.shape)}: expected [N, C, H, W] with N ≥ 1")
        cls.check(tuple(images.shape))
        if images.dtype == torch.uint8:
            return
        low, high = (float(end) for end in torch.aminmax(images.detach()))
        if not math.isfinite(low) or not math.isfinite(high):
            raise DataError("images: hold NaN or infinity")
        if low < -slack or high > 1 + slack:
            raise DataError(f"images: values in [{low:.4g}, {high:.4g}], expected [0, 1]")

    @torch.no_grad()
    def score(self, images: Tensor, batch: int = 500) -> Tensor:
        """Noise ratios of many images `[N, C, H, W]`, checked, without gradients, `batch` at a time.

        They are floats in 0..1; those that were refined and not clamped are taken too.
        """
        checks.integer("batch", batch, 1)
        weight = self.conv1.weight
        if isinstance(images, Tensor) and images.device != weight.device:
            raise DataError(f"images on {images.device}: expected the network's device, {weight.device}")
        self._check_values(images, FAR)
        if images.dtype != weight.dtype:
            raise DataError(
                f"images of {images.dtype}: expected {weight.dtype} in 0..1, as the network's weights are"
            )
        return torch.cat([self(part) for part in torch.split(images, batch)])

    def save(self, path: Path, *, half: bool = False) -> None:
        """Write the weights as safetensors, in half precision if asked."""
        weights = {
            name: (w.half() if half else w).detach().cpu().contiguous()
            for name, w in self.state_dict().items()
        }
        broken = [name for name, w in weights.items() if not bool(w.isfinite().all())]
        if broken:
            precision = " in half precision" if half else ""
            raise DataError(f"weights: {broken[0]} is not finite{precision}, nothing was written")
        write_whole(path, save(weights))

    @classmethod
    def load(cls, path: Path) -> "EvaluationNetwork":
        """Read weights written by `save`; they are used in float32 and stay fixed."""
        return frozen(path, lambda weights: cls(), "an evaluation network")

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "EvaluationNetwork":
        """The weights that come with refiner, trained on Tiny-ImageNet; one shared copy a device."""
        return _bundled(available(device))


@cache
def _bundled(device: torch.device) -> EvaluationNetwork:
    return EvaluationNetwork.load(BUNDLED).to(device)
