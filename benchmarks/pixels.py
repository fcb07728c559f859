"""Images as the models take them, for the other benchmarks."""

from torch import Tensor


def pixels(images: Tensor, device: str) -> Tensor:
    """uint8 images as float32 in 0..1 on the device."""
    return images.to(device).float() / 255
