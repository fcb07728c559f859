"""The network of the learned attack: from an upload to the images of its batch."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.attacks.learning.linear_estimate import LinearEstimate
from refiner.attacks.learning.unet import UNet, seeded_network

_UPLOADS_AT_ONCE = 512


class UploadInverter(nn.Module):
    """Fully connected layers turn an upload into coarse images, and a U-Net refines each of them.

    A linear estimate of the images can be given; the fully connected layers then only correct it. Before the
    training they add nothing.

    Args:
        inputs: Number of values that describe an upload.
        batch: Images in a client's batch.
        shape: The shape of one image; of inputs that are no images [C, H, W] there is no refinement.
        hidden: Width of the two hidden layers.
        width: Channels of the U-Net's finest level; 0 leaves the U-Net out.

    >>> network = UploadInverter(20, batch=2, shape=(3, 16, 16), hidden=32, width=8)
    >>> network(torch.rand(5, 20), torch.zeros(5, 2, 3, 16, 16)).shape
    torch.Size([5, 2, 3, 16, 16])
    """

    def __init__(self, inputs: int, batch: int, shape: tuple[int, ...], hidden: int, width: int) -> None:
        super().__init__()
        self.shape = (batch, *shape)
        last = nn.Linear(hidden, math.prod(self.shape))
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            last,
        )
        self.unet = None
        if len(shape) == 3 and width:
            self.unet = UNet(shape[0], shape[0], width, min(shape[1:]))

    def forward(self, uploads: Tensor, linear: Tensor) -> Tensor:
        """Return the images of every upload, less their mean.

        Args:
            uploads: `[U, inputs]`.
            linear: A first estimate of the result `[U, B, *input]`, such as zeros.

        Returns:
            `[U, B, *input]`.
        """
        coarse: Tensor = linear + self.layers(uploads).view(len(uploads), *self.shape)
        if self.unet is None:
            return coarse
        images = coarse.flatten(0, 1)
        refined: Tensor = images + self.unet(images)
        return refined.view_as(coarse)


class ImagePredictor:
    """Predicts images less their mean: a linear estimate, corrected by a network; on a GPU in bfloat16.

    Args:
        inputs: Number of values that describe an upload.
        linear: The linear estimate.
        hidden: Width of the network's hidden layers.
        width: Channels of its U-Net's finest level.
        device: Where it computes.
        seed: Seed of the network's weights.
    """

    def __init__(
        self, inputs: int, linear: LinearEstimate, hidden: int, width: int, device: torch.device, seed: int
    ) -> None:
        self.linear, self.device = linear, device
        self.network = seeded_network(
            lambda: UploadInverter(inputs, linear.batch, linear.shape, hidden, width), seed
        ).to(device)
        if device.type == "cuda" and self.network.unet is not None:
            self.network.unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.factor = torch.ones((), device=device)
        """What the network's correction of the linear estimate is multiplied by."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the images less their mean `[U, B, *input]` of uploads `[U, D]`."""
        inputs = inputs.to(self.device).float()
        linear = self.linear(inputs)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            out: Tensor = self.network(inputs, linear)
        return linear + self.factor * (out.float() - linear)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return the same for any number of uploads, without gradients."""
        return torch.cat([self(part) for part in torch.split(inputs, _UPLOADS_AT_ONCE)])

    @torch.no_grad()
    def calibrate(self, inputs: Tensor, targets: Tensor) -> float:
        """Set the factor to the best one for uploads that were held out, and return their squared error.

        Args:
            inputs: `[U, D]`.
            targets: The images less their mean, `[U, B, *input]`.
        """
        parts = [self.linear(part.to(self.device)) for part in torch.split(inputs, _UPLOADS_AT_ONCE)]
        linear = torch.cat(parts).float()
        added, missing = self.predict(inputs) - linear, targets - linear
        self.factor = ((added * missing).sum() / added.square().sum().clamp_min(1e-30)).clamp(0, 1)
        return float(F.mse_loss(self.factor * added, missing))
