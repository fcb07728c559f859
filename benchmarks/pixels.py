"""Images as the models take them, for the other benchmarks."""

from torch import Tensor

from refiner.data import ImageDataset


def client_batches(
    data: ImageDataset, clients: int, batch: int, device: str, first: int = 40_000
) -> tuple[Tensor, Tensor]:
    """Images `[clients, batch, C, H, W]` and labels of clients, from image `first` on."""
    rows = slice(first, first + clients * batch)
    images, labels = pixels(data.images[rows], device), data.labels[rows].to(device)
    return images.view(clients, batch, *images.shape[1:]), labels.view(clients, batch)


def pixels(images: Tensor, device: str) -> Tensor:
    """uint8 images as float32 in 0..1 on the device."""
    return images.to(device).float() / 255
