"""Restoration: images from degraded ones, by a filter and a network trained on pairs of public images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.attacks.learning.network_training import TrainingSettings, TrainingState, train_network
from refiner.attacks.learning.unet import UNet, seeded_network
from refiner.attacks.stages.frequency_filter import FrequencyFilter

_IMAGES_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Restorer:
    """Estimates images from degraded ones and their labels. Made by `train_restorer`.

    The network sees the degraded image and the filter's estimate of it, and its output is added to that
    estimate, times a factor that is best for images held out of the training: it can be no worse there.
    """

    linear: FrequencyFilter
    network: UNet
    scale: float
    """The root mean square of the centred images."""
    degraded_scale: float
    factor: float
    low: float
    high: float
    """The range of the public images."""

    def __call__(self, degraded: Tensor, labels: Tensor) -> Tensor:
        """Return estimates of images.

        Args:
            degraded: `[N, C, H, W]`.
            labels: Their labels `[N]`.

        Returns:
            `[N, C, H, W]`, in the range of the images of the training.
        """
        with torch.no_grad():
            parts = [
                self.linear(d) + self.factor * self.correction(d, y) for d, y in _parts(degraded, labels)
            ]
        return torch.cat(parts).clamp(self.low, self.high)

    def correction(self, degraded: Tensor, labels: Tensor) -> Tensor:
        """Return what the network adds to the filter's estimate."""
        seen = torch.cat(
            [
                (degraded - self.linear.degraded_mean) / self.degraded_scale,
                (self.linear(degraded) - self.linear.clean_mean) / self.scale,
            ],
            dim=1,
        )
        on_gpu = degraded.is_cuda
        with torch.autocast(degraded.device.type, torch.bfloat16, enabled=on_gpu):
            seen = seen.contiguous(memory_format=torch.channels_last) if on_gpu else seen
            out: Tensor = self.network(seen, labels)
        return self.scale * out.float()


def train_restorer(
    degraded: Tensor,
    clean: Tensor,
    labels: Tensor,
    *,
    classes: int,
    held_out: int,
    width: int,
    settings: TrainingSettings,
    seed: int,
    state: TrainingState,
    on_samples: Callable[[int], None] = lambda done: None,
) -> Restorer | None:
    """Return a restorer trained on pairs of images; None if the training diverged.

    Args:
        degraded: `[N, C, H, W]`, on the device to train on.
        clean: What they were made of, `[N, C, H, W]`.
        labels: Their labels `[N]`.
        classes: Number of classes.
        held_out: How many of the last pairs are not trained on. An image must not occur on both sides.
        width: Channels of the U-Net's finest level, a multiple of 8.
        settings: Epochs, batch and learning rate.
        seed: Seed of the network's weights and of the order.
        state: Where finished epochs are saved.
        on_samples: Called after some steps with the pairs done in all epochs.

    >>> draws = torch.Generator().manual_seed(0)
    >>> clean = torch.rand(60, 1, 8, 8, generator=draws)
    >>> degraded = clean + 0.1 * torch.randn(60, 1, 8, 8, generator=draws)
    >>> labels = torch.zeros(60, dtype=torch.long)
    >>> settings = TrainingSettings(epochs=1, batch=20)
    >>> restorer = train_restorer(degraded, clean, labels, classes=1, held_out=10, width=8,
    ...                           settings=settings, seed=0, state=TrainingState(None, {}))
    >>> restorer(degraded[:5], labels[:5]).shape
    torch.Size([5, 1, 8, 8])
    """
    count = len(clean) - held_out
    linear = FrequencyFilter.fit(degraded[:count], clean[:count])
    channels, height, side = clean.shape[1:]
    network = seeded_network(
        lambda: UNet(2 * channels, channels, width, min(height, side), classes), seed
    ).to(clean.device)
    if clean.is_cuda:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    scale, degraded_scale = (
        float((t[:count] - t[:count].mean(0)).square().mean().sqrt().clamp_min(1e-6))
        for t in (clean, degraded)
    )
    low, high = (float(end) for end in clean.aminmax())
    restorer = Restorer(linear, network, scale, degraded_scale, 1.0, low, high)

    def loss(index: Tensor) -> Tensor:
        rows = index.to(clean.device)
        d, c = degraded[rows], clean[rows]
        # In units of the images' own variance.
        return F.mse_loss(restorer.correction(d, labels[rows]) / scale, (c - linear(d)) / scale)

    if not train_network(network, loss, count, settings, seed=seed, state=state, on_samples=on_samples):
        return None
    with torch.no_grad():
        rest = slice(count, len(clean))
        added = torch.cat([restorer.correction(d, y) for d, y in _parts(degraded[rest], labels[rest])])
        missing = clean[rest] - linear(degraded[rest])
        factor = float(((added * missing).sum() / added.square().sum().clamp_min(1e-30)).clamp(0, 1))
    return Restorer(linear, network, scale, degraded_scale, factor, low, high)


def _parts(images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(*(torch.split(t, _IMAGES_AT_ONCE) for t in (images, labels)), strict=True)
