"""The generator, which maps a latent vector and a label to a 32×32 image; GGL optimises its latents."""

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from refiner import checks
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.weights import load_frozen, resolve_device

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "generator.safetensors"
SIDE = 32
START_SIDE = 4


class ClassNorm(nn.Module):
    """Batch norm with a gain and a shift for each class.

    De Vries, Strub, Mary, Larochelle, Pietquin and Courville, "Modulating early visual processing by
    language", NeurIPS 2017.

    >>> norm = ClassNorm(8, classes=10).eval()
    >>> norm(torch.zeros(2, 8, 4, 4), torch.tensor([3, 7])).shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.gain = nn.Parameter(torch.ones(classes, channels))
        self.shift = nn.Parameter(torch.zeros(classes, channels))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return normalised features of the same shape."""
        normalised = self.norm(x)
        # In the dtype of the features: float32 tables would promote bfloat16 features to float32.
        gain, shift = (
            F.embedding(y, t).to(normalised.dtype)[..., None, None] for t in (self.gain, self.shift)
        )
        return torch.addcmul(shift, normalised, gain)


class UpBlock(nn.Module):
    """Doubles the side: two 3×3 convolutions with class norms, with the enlarged input as shortcut.

    >>> UpBlock(8, classes=10)(torch.zeros(2, 8, 4, 4), torch.tensor([3, 7])).shape
    torch.Size([2, 8, 8, 8])
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm1 = ClassNorm(channels, classes)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = ClassNorm(channels, classes)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return features of twice the side."""
        hidden = self.conv1(_double(torch.relu(self.norm1(x, y))))
        out: Tensor = _double(x) + self.conv2(torch.relu(self.norm2(hidden, y)))
        return out


class Generator(nn.Module):
    """A class-conditional generator of 32×32 images.

    A linear layer to 4×4, three residual blocks that double the side, and a convolution to colours in 0..1.
    The label is an input, as an attacker can infer it from a gradient. In `eval` mode batch norm uses its
    running statistics: the network is then a pure function of `(z, y)` for each sample, which can be
    differentiated to any order and under `torch.func.vmap`. The prior of `z` is standard normal.

    Args:
        latent: The size of a latent vector.
        classes: The number of labels.
        width: Channels of every block.

    >>> generator = Generator(latent=16, width=8).eval()
    >>> generator(torch.zeros(5, 2, 16), torch.tensor([[3, 7]] * 5)).shape
    torch.Size([5, 2, 3, 32, 32])
    """

    def __init__(self, latent: int = 128, classes: int = 10, width: int = 168) -> None:
        super().__init__()
        self.latent = checks.integer("latent", latent, 1)
        self.classes = checks.integer("classes", classes, 1)
        self.width = checks.integer("width", width, 1)
        self.start = nn.Linear(latent, START_SIDE * START_SIDE * width)
        self.blocks = nn.ModuleList(UpBlock(width, classes) for _ in range(3))
        self.norm = nn.BatchNorm2d(width)
        self.colours = nn.Conv2d(width, 3, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the images of latents and labels.

        Args:
            z: Latents `[..., latent]`.
            y: Labels `[...]`.

        Returns:
            `[..., 3, 32, 32]` in 0..1.

        Raises:
            DataError: The shapes don't fit.
        """
        if z.shape[-1:] != (self.latent,) or y.shape != z.shape[:-1]:
            actual = f"z of shape {list(z.shape)} with y of shape {list(y.shape)}"
            expected = f"[..., {self.latent}] with [...]"
            raise DataError(f"{actual}: expected {expected}", field="z", value=actual, expected=expected)
        labels = y.reshape(-1)
        hidden: Tensor = self.start(z.reshape(-1, self.latent))
        # Channels last: every following layer keeps this layout, which is the fast one on tensor cores.
        hidden = hidden.view(-1, START_SIDE, START_SIDE, self.width).permute(0, 3, 1, 2)
        for block in self.blocks:
            hidden = block(hidden, labels)
        colours = self.colours(torch.relu(self.norm(hidden)))
        # Under autocast the image itself has full precision.
        return torch.sigmoid(colours.to(z.dtype)).reshape(*z.shape[:-1], 3, SIDE, SIDE)

    def draw(self, y: Tensor, seed: int) -> Tensor:
        """Return latents from the prior, the same on every device.

        Args:
            y: Labels `[...]`.
            seed: Seed of the draws.

        Returns:
            `[..., latent]`.

        >>> generator = Generator(latent=16, width=8)
        >>> bool((generator.draw(torch.arange(3), 0) == generator.draw(torch.arange(3), 0)).all())
        True
        """
        checks.integer("seed", seed, 0, 2**31 - 1)
        draws = torch.Generator().manual_seed(seed)
        return torch.randn(*y.shape, self.latent, generator=draws).to(y.device)

    def save(self, path: Path) -> None:
        """Write a safetensors file: parameters in half precision, batch-norm statistics in float32.

        Args:
            path: The file.

        Raises:
            DataError: A weight is not finite in half precision; nothing is written.
        """
        parameters = {name for name, _ in self.named_parameters()}
        tensors = {
            name: (t.half() if name in parameters else t).detach().cpu().contiguous()
            for name, t in self.state_dict().items()
        }
        broken = [name for name, t in tensors.items() if not bool(t.isfinite().all())]
        if broken:
            raise DataError(
                f"weights: {broken[0]} is not finite in half precision, nothing was written",
                field=broken[0],
                expected="finite weights",
            )
        write_atomically(path, save(tensors))

    @classmethod
    def load(cls, path: Path) -> "Generator":
        """Return a generator of any size with weights written by `save`, in float32 and frozen.

        Args:
            path: A file that `save` wrote.

        Returns:
            The generator, in `eval` mode.

        Raises:
            DataError: The file is missing or does not contain a generator.
        """

        def make(weights: dict[str, Tensor]) -> "Generator":
            cells, latent = weights["start.weight"].shape
            return cls(latent, len(weights["blocks.0.norm1.gain"]), cells // START_SIDE**2)

        return load_frozen(path, make, "a generator")

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "Generator":
        """Return the bundled generator, trained on CIFAR-10's first 40,000 images; one copy per device.

        Args:
            device: Where the generator is needed.

        Returns:
            The generator, frozen and in `eval` mode.

        Raises:
            DataError: There is no such device here.
        """
        return _bundled(resolve_device(device))


@cache
def _bundled(device: torch.device) -> Generator:
    if not BUNDLED.exists():
        raise DataError(
            field="weights",
            value=str(BUNDLED),
            expected="the file of a generator",
            problem="not found; make it with refiner gan train --data DIR --out FILE",
        )
    return Generator.load(BUNDLED).to(device)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")
