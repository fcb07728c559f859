"""The generator: a latent vector and a label become an image of 32×32; attacks search its latents."""

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from refiner import checks
from refiner.errors import DataError
from refiner.files import write_whole
from refiner.weights import available, frozen

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "generator.safetensors"
SIDE = 32
START = 4


class ClassNorm(nn.Module):
    """Batch norm whose gain and shift are those of the image's class (de Vries et al. 2017).

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
        """Features of the same shape."""
        normal = self.norm(x)
        # In the features' own type: float32 tables would widen bfloat16 features to float32.
        gain, shift = (F.embedding(y, t).to(normal.dtype)[..., None, None] for t in (self.gain, self.shift))
        return torch.addcmul(shift, normal, gain)


class UpBlock(nn.Module):
    """Doubles the side: two 3×3 convolutions with class norms, and the doubled input added to them.

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
        """Features of twice the side."""
        wide = self.conv1(_double(torch.relu(self.norm1(x, y))))
        out: Tensor = _double(x) + self.conv2(torch.relu(self.norm2(wide, y)))
        return out


class Generator(nn.Module):
    """A linear layer to 4×4, three residual blocks that double the side, a convolution to colours in 0..1.

    The attacker knows the labels (a gradient tells them), so the label is an input. In `eval` mode batch norm
    uses its running statistics and the network is a pure function of `(z, y)`, sample by sample, that can be
    differentiated to any order and under `torch.func.vmap`. The prior of `z` is the standard normal one.

    >>> generator = Generator(latent=16, width=8).eval()
    >>> generator(torch.zeros(5, 2, 16), torch.tensor([[3, 7]] * 5)).shape
    torch.Size([5, 2, 3, 32, 32])
    """

    def __init__(self, latent: int = 128, classes: int = 10, width: int = 168) -> None:
        super().__init__()
        self.latent = checks.integer("latent", latent, 1)
        self.classes = checks.integer("classes", classes, 1)
        self.width = checks.integer("width", width, 1)
        self.start = nn.Linear(latent, START * START * width)
        self.blocks = nn.ModuleList(UpBlock(width, classes) for _ in range(3))
        self.norm = nn.BatchNorm2d(width)
        self.colours = nn.Conv2d(width, 3, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Images `[..., 3, 32, 32]` of latents `[..., latent]` and labels `[...]`."""
        if z.shape[-1:] != (self.latent,) or y.shape != z.shape[:-1]:
            raise DataError(
                f"z of shape {list(z.shape)} with y of shape {list(y.shape)}: "
                f"expected [..., {self.latent}] with [...]"
            )
        labels = y.reshape(-1)
        hidden: Tensor = self.start(z.reshape(-1, self.latent))
        # Channels come last, so that every layer from here on keeps the layout that tensor cores want.
        hidden = hidden.view(-1, START, START, self.width).permute(0, 3, 1, 2)
        for block in self.blocks:
            hidden = block(hidden, labels)
        colours = self.colours(torch.relu(self.norm(hidden)))
        # Under autocast the image itself keeps full precision.
        return torch.sigmoid(colours.to(z.dtype)).reshape(*z.shape[:-1], 3, SIDE, SIDE)

    def draw(self, y: Tensor, seed: int) -> Tensor:
        """Latents `[..., latent]` from the prior for labels `[...]`: the same on every device.

        >>> generator = Generator(latent=16, width=8)
        >>> bool((generator.draw(torch.arange(3), 0) == generator.draw(torch.arange(3), 0)).all())
        True
        """
        checks.integer("seed", seed, 0, 2**31 - 1)
        draws = torch.Generator().manual_seed(seed)
        return torch.randn(*y.shape, self.latent, generator=draws).to(y.device)

    def save(self, path: Path) -> None:
        """Write safetensors: half precision for what was learnt, float32 for the batch-norm statistics."""
        learnt = {name for name, _ in self.named_parameters()}
        tensors = {
            name: (t.half() if name in learnt else t).detach().cpu().contiguous()
            for name, t in self.state_dict().items()
        }
        broken = [name for name, t in tensors.items() if not bool(t.isfinite().all())]
        if broken:
            raise DataError(f"weights: {broken[0]} is not finite in half precision, nothing was written")
        write_whole(path, save(tensors))

    @classmethod
    def load(cls, path: Path) -> "Generator":
        """Read weights written by `save`, of any size; they are used in float32 and stay fixed."""

        def fitting(weights: dict[str, Tensor]) -> "Generator":
            cells, latent = weights["start.weight"].shape
            return cls(latent, len(weights["blocks.0.norm1.gain"]), cells // START**2)

        return frozen(path, fitting, "a generator")

    @staticmethod
    def bundled(device: torch.device | str = "cpu") -> "Generator":
        """The weights that come with refiner, of CIFAR-10's first 40,000; one shared copy a device."""
        return _bundled(available(device))


@cache
def _bundled(device: torch.device) -> Generator:
    if not BUNDLED.exists():
        raise DataError(
            f"weights = {str(BUNDLED)!r}: not there; make them: refiner gan train --data DIR --out FILE"
        )
    return Generator.load(BUNDLED).to(device)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")
