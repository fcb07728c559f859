"""Which pixel stands where in the patches that a model's first layer gets: found by running the model."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.core.module_inputs import module_input
from refiner.core.task import Task

# A binary digit that comes back with a larger error has been changed by more than a normalisation.
_DIGIT_ERROR = 0.01


class PatchPixels(NamedTuple):
    """The pixels of the patches that a layer gets, each pixel in one patch; all `[T, inputs]`."""

    pixels: Tensor
    """The number of the pixel in the flattened image."""
    scale: Tensor
    """What the pixel is multiplied by in front of the layer."""
    shift: Tensor
    """What is added to it then."""

    def patches_of(self, images: Tensor) -> Tensor:
        """Return the layer's inputs `[V, T, inputs]` for images.

        Args:
            images: Flattened images `[V, pixels]`, in the range that the task takes.
        """
        return images[:, self.pixels] * self.scale + self.shift

    def images_of(self, patches: Tensor) -> Tensor:
        """Return flattened images `[V, pixels]`: the inverse of `patches_of`.

        Args:
            patches: The layer's inputs `[V, T, inputs]`.
        """
        values = (patches - self.shift) / self.scale
        images = values.new_empty(len(values), self.pixels.numel())
        images[:, self.pixels.flatten()] = values.flatten(1)
        return images


def find_patch_pixels(task: Task, layer: str) -> PatchPixels | None:
    """Return which pixels a layer gets, if its inputs are patches that hold every pixel of the image once.

    The model is shown the binary digits of the pixels' numbers, one image for each digit: the layer's input
    then spells at every place the number of the pixel that stands there. Two more images, of zeros and of
    ones, show how pixels are normalised on the way.

    Args:
        task: The model and its loss.
        layer: The name of an `nn.Linear` or `nn.Conv2d`.

    Returns:
        The pixels in float64; None if the layer is a convolution whose kernel is not its stride, has no axis
        of patches, or gets something else than pixels, each normalised by itself.

    Raises:
        DataError: The layer runs more or less than once in a pass, or not on one row per sample.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.Flatten(), nn.Linear(4, 2))
    >>> find_patch_pixels(Task(model, example=torch.rand(1, 1, 4, 2)), "0").pixels
    tensor([[0, 1, 2, 3],
            [4, 5, 6, 7]])
    """
    parameters = task.parameters()
    like = next(iter(parameters.values()))
    count = math.prod(task.input_shape)
    numbers = torch.arange(count, device=like.device)
    digits = [(numbers >> k) & 1 for k in range(count.bit_length())]
    images = torch.stack([torch.zeros_like(numbers), torch.ones_like(numbers), *digits])
    with torch.no_grad():
        given = module_input(task, parameters, images.view(-1, *task.input_shape).to(like.dtype), layer)
    patches = _as_patches(task.model.get_submodule(layer), given.double())
    if patches is None or patches[0].numel() != count:
        return None
    shift, scale = patches[0], patches[1] - patches[0]
    shown = (patches[2:] - shift) / scale
    if not bool((torch.minimum(shown.abs(), (shown - 1).abs()) < _DIGIT_ERROR).all()):
        return None
    powers = 2 ** torch.arange(len(digits), device=like.device)
    pixels = (shown.round().long() * powers.view(-1, 1, 1)).sum(0)
    has_all = torch.equal(pixels.flatten().sort().values, numbers)
    return PatchPixels(pixels, scale, shift) if has_all else None


def _as_patches(module: nn.Module, given: Tensor) -> Tensor | None:
    """A layer's input as patches `[B, T, inputs]`; None if the layer does not run on separate patches."""
    if isinstance(module, nn.Conv2d):
        is_plain = module.groups == 1 and module.dilation == (1, 1) and module.padding in ((0, 0), "valid")
        if not is_plain or module.kernel_size != module.stride or given.ndim != 4:
            return None
        return F.unfold(given, module.kernel_size, stride=module.stride).transpose(1, 2)
    # A subclass may reshape its input itself.
    runs_on_patches = given.ndim > 2 and given.shape[-1] == module.in_features
    return given.flatten(1, -2) if runs_on_patches else None
