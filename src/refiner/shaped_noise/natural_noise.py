"""`NaturalNoise`: the covariance of natural images at every frequency, and noise that has it."""

import hashlib
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from refiner import checks
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.shaped_noise.cosine_transform import dct, inverse_dct
from refiner.weights import load_frozen, resolve_device

BUNDLED = "natural_noise.safetensors"
# Added to a covariance as a share of its mean variance: some frequencies of some images are constant.
_RIDGE = 1e-6


class NaturalNoise(nn.Module):
    """Turns white noise into noise with the covariance of images, or of images plus white noise.

    Images are described by the covariance of their colours at every frequency of a cosine transform;
    frequencies are treated as independent. It is fitted on public images and is no secret.

    Args:
        covariance: `[H, W, C, C]`, the covariance of the C channels' coefficients at every frequency.
        mean: The mean image `[C, H, W]`.

    Raises:
        DataError: The shapes don't fit, or a covariance is not symmetric and positive definite.

    >>> noise = NaturalNoise.bundled()
    >>> white = torch.randn(500, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> round(float(noise(white).std()), 2)  # of CIFAR-10's images 0.25
    0.25
    >>> torch.allclose(noise.whiten(noise(white)), white, atol=1e-2)
    True
    """

    covariance: Tensor
    mean: Tensor
    root: Tensor

    def __init__(self, covariance: Tensor, mean: Tensor) -> None:
        super().__init__()
        expected = "[H, W, C, C] with a mean image [C, H, W]"
        if covariance.ndim != 4 or mean.shape != (covariance.shape[-1], *covariance.shape[:2]):
            value = f"{list(covariance.shape)} with {list(mean.shape)}"
            raise DataError(field="covariance", value=value, expected=expected)
        root, failed = torch.linalg.cholesky_ex(covariance.double())
        if covariance.shape[2] != covariance.shape[3] or bool(failed.any()):
            raise DataError(field="covariance", value=covariance, expected="positive definite matrices")
        self.register_buffer("covariance", covariance)
        self.register_buffer("mean", mean)
        # Not stored: it follows from the covariance.
        self.register_buffer("root", root.to(covariance), persistent=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of the images that it is for."""
        channels, height, width = self.mean.shape
        return channels, height, width

    def forward(self, white: Tensor) -> Tensor:
        """Return noise with this covariance, made of white noise `[..., C, H, W]`."""
        return inverse_dct(_mix(self.root, white))

    def whiten(self, noise: Tensor) -> Tensor:
        """Return the white noise of which `noise [..., C, H, W]` was made.

        The length of a whitened image is its length in units of the noise of strength 1.
        """
        coefficients = dct(noise).movedim(-3, -1)[..., None]
        white: Tensor = torch.linalg.solve_triangular(self.root, coefficients, upper=False)
        return white[..., 0].movedim(-1, -3)

    def for_shape(self, shape: tuple[int, ...]) -> "NaturalNoise":
        """Return the noise for images of another size, as if the same scenes were shown with more pixels.

        A frequency is a number of waves per image, and a variance grows with the number of pixels. Higher
        frequencies than those measured continue with the power law of natural images, 1 / frequency².

        Args:
            shape: (C, H, W) of the images.

        Raises:
            DataError: Another number of channels, or no image at all.
        """
        channels, height, width = self.shape
        if len(shape) != 3:
            raise DataError(
                field="inputs", value=list(shape), expected="images [C, H, W], whose noise this is"
            )
        if shape[0] != channels:
            raise DataError(
                field="statistics",
                value=f"of {channels} channels",
                expected=f"statistics of images of {shape[0]}: `refiner noise fit` makes them, for the "
                "setting `statistics=FILE` of the defence",
            )
        if tuple(shape) == self.shape:
            return self
        rows, columns = (torch.arange(size, device=self.mean.device) for size in shape[1:])
        known_rows, known_columns = rows.clamp_max(height - 1), columns.clamp_max(width - 1)
        known = torch.hypot(known_rows[:, None].float(), known_columns[None].float()).clamp_min(1)
        decay = (known / torch.hypot(rows[:, None].float(), columns[None].float()).clamp_min(1)).square()
        pixels = shape[1] * shape[2] / (height * width)
        covariance = self.covariance[known_rows][:, known_columns] * (pixels * decay)[..., None, None]
        mean = nn.functional.interpolate(self.mean[None], size=shape[1:], mode="bilinear")[0]
        return NaturalNoise(covariance, mean)

    def with_white(self, deviation: float) -> "NaturalNoise":
        """Return the sum of this noise and white noise, which hides the high frequencies that this one lacks.

        Args:
            deviation: The standard deviation of the white noise in a pixel.

        Returns:
            Noise of which every frequency has the sum of both variances.

        Raises:
            SettingError: The deviation is not a number in [0, 100].

        >>> white = torch.randn(100, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> round(float(NaturalNoise.bundled().with_white(1.0)(white).std()), 2)  # √(0.25² + 1)
        1.03
        """
        checks.number("deviation", deviation, 0, 100)
        if deviation == 0:
            return self
        identity = torch.eye(self.shape[0], dtype=self.mean.dtype, device=self.mean.device)
        return NaturalNoise(self.covariance + deviation**2 * identity, self.mean)

    def distance_between(self, images: "NaturalNoise") -> float:
        """Return how far apart two random images lie, in units of this noise: a root mean square.

        Args:
            images: The statistics of the images, of this noise's shape.

        Raises:
            DataError: They have another shape.

        >>> images = NaturalNoise.bundled()
        >>> round(images.distance_between(images))  # √(2 · 3 · 32 · 32)
        78
        >>> round(images.with_white(0.6).distance_between(images))
        15
        """
        if images.shape != self.shape:
            raise DataError(field="images", value=f"statistics of {images.shape}", expected=str(self.shape))
        relative = torch.linalg.solve_triangular(self.root, images.root, upper=False)
        return float(relative.square().sum().mul(2).sqrt())

    def digest(self) -> str:
        """Return a hash of the statistics, as hexadecimal digits."""
        values = self.covariance.detach().cpu().contiguous()
        return hashlib.sha256(values.view(torch.uint8).numpy().tobytes()).hexdigest()

    @classmethod
    def fit(cls, images: Tensor) -> "NaturalNoise":
        """Return the noise with the covariance of `images`.

        Args:
            images: Public images `[N, C, H, W]` in 0..1, like those to protect but none of them; thousands.

        Raises:
            DataError: The images have another shape or range, or are too few.

        >>> images = torch.rand(500, 1, 8, 8)
        >>> noise = NaturalNoise.fit(images)(torch.randn(500, 1, 8, 8))
        >>> bool((noise.std() / images.std() - 1).abs() < 0.1)
        True
        """
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            raise checks.wrong("images", images, "a floating-point tensor [N, C, H, W]")
        if len(images) < 100:
            raise DataError(field="images", value=len(images), expected="100 images or more; 1,000 are good")
        low, high = images.aminmax()
        if not 0 <= float(low) <= float(high) <= 1:
            raise DataError(field="images", value=images, expected="finite values in 0..1")
        mean = images.mean(0)
        colours = dct((images - mean).double()).permute(2, 3, 0, 1)
        covariance = colours.mT @ colours / (len(images) - 1)
        variances = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
        # Grey images have one colour only: what rounding to float32 may take is added at every frequency.
        ridge = _RIDGE * (variances.mean() + variances)
        identity = torch.eye(images.shape[1], dtype=torch.float64, device=images.device)
        if not float(ridge.sum()):
            raise DataError(field="images", value=images, expected="images that differ from each other")
        return cls((covariance + ridge[..., None, None] * identity).to(images.dtype), mean)

    def save(self, path: Path) -> None:
        """Write the statistics to a safetensors file."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        write_atomically(path, save(tensors))

    @classmethod
    def load(cls, path: Path) -> "NaturalNoise":
        """Return the statistics that `save` or `refiner noise fit` wrote.

        Args:
            path: The file.

        Raises:
            DataError: The file is missing or holds no such statistics.
        """
        return load_frozen(
            path,
            lambda tensors: cls(tensors["covariance"], tensors["mean"]),
            "noise statistics",
            field="statistics",
        )

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "NaturalNoise":
        """Return the bundled statistics, of 20,000 CIFAR-10 training images; one copy for each device.

        Args:
            device: Where they are needed.
        """
        return _bundled(resolve_device(device))


def _mix(root: Tensor, white: Tensor) -> Tensor:
    """Mix the channels of coefficients `[..., C, H, W]` by a matrix for each frequency, `[H, W, C, C]`."""
    # Faster than as many products of tiny matrices as there are pixels.
    return (root.permute(2, 3, 0, 1) * white.unsqueeze(-4)).sum(-3)


@cache
def _bundled(device: torch.device) -> NaturalNoise:
    with as_file(files("refiner") / "assets" / BUNDLED) as file:
        return NaturalNoise.load(file).to(device)
