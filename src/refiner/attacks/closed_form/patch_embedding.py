"""How a vision transformer turns an image into tokens: found by running it, not by knowing its code."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refiner.attacks.closed_form.patch_pixels import PatchPixels, find_patch_pixels
from refiner.core.task import Task
from refiner.errors import DataError

# Two gradients of a token are the same if they differ by less than this part of the longest one.
_SAME = 1e-4
# Added to the parameters while the model is examined: a last layer of zeros would hide every gradient.
_PARAMETER_NOISE = 0.02


@dataclass(frozen=True, eq=False)
class PatchEmbedding:
    """The layer that maps patches to tokens, and the position embedding that is added to them.

    For one image the gradient of the position embedding is that of the tokens, G `[T, width]`, and the
    gradient of the layer's weight is Gᵀ X, with X `[T, inputs]` the patches.
    """

    weight: str
    """The name of the layer's weight."""
    position: str
    """The name of the position embedding."""
    width_first: bool
    """Whether the position embedding has the tokens in its last axes, as in `[1, width, height, width]`."""
    rows: Tensor
    """The number of the position that is added to each patch, `[T]`: a class token has one of its own."""
    pixels: PatchPixels
    """The pixels of each patch."""

    def token_gradients(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return G, the gradients of the patches' tokens, `[V, T, width]`.

        Args:
            gradient: Uploads of one image each by the names of parameters, `[V, *shape]`.
        """
        width = gradient[self.weight].shape[1]
        return _positions(gradient[self.position], width, self.width_first)[:, self.rows]

    def weight_gradients(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """Return the gradients of the layer's weight, `[V, width, inputs]`.

        Args:
            gradient: Uploads by the names of parameters, `[V, *shape]`.
        """
        return gradient[self.weight].flatten(2)


def find_patch_embedding(task: Task, attack: str) -> PatchEmbedding:
    """Return the patch embedding and the position embedding of a vision transformer.

    The patch embedding is the model's first layer: an `nn.Linear` on every patch, or an `nn.Conv2d` whose
    kernel is its stride. The position embedding is the parameter that has the gradient of that layer's
    output.

    Args:
        task: The model and its loss.
        attack: The name of the attack that inverts it.

    Raises:
        DataError: The model starts with another layer, or has no learned position embedding.

    >>> from refiner.models import ViT
    >>> model = ViT(input_shape=(3, 8, 8), width=8, depth=1, heads=2)
    >>> found = find_patch_embedding(Task(model, example=torch.rand(1, 3, 8, 8)), "april")
    >>> found.weight, found.position, found.rows.tolist()
    ('embed.weight', 'position', [1, 2, 3, 4])
    """
    layers = [layer for layer in task.layers if _is_linear(task.model.get_submodule(layer.name))]
    name = layers[0].name if layers else ""
    weight = f"{name}.weight" if name else "weight"
    pixels = find_patch_pixels(task, name) if layers and weight in task.shapes else None
    if pixels is None:
        raise DataError(
            field="model",
            value=name or type(task.model).__name__,
            expected="a first layer on patches of the image (linear, or a convolution whose kernel is its "
            f"stride), which {attack} inverts",
        )
    found = _find_position(task, name)
    if found is None:
        raise DataError(
            field="model",
            value=name,
            problem="no trainable position embedding is added to its output, so that its gradient does not "
            f"reveal that of the tokens, which {attack} needs",
        )
    return PatchEmbedding(weight, *found, pixels)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv2d)


def _find_position(task: Task, layer: str) -> tuple[str, bool, Tensor] | None:
    """The parameter with the gradient of a layer's output, whether its width is first, and its rows."""
    tokens, gradient = _example_gradients(task, layer)
    count, width = tokens.shape
    # Position embeddings are smaller than most weights, which are then not compared at all.
    for name, value in sorted(gradient.items(), key=lambda item: item[1].numel()):
        for width_first in (False, True):
            axes = [size for size in value.shape if size > 1] or [1]
            if value.numel() < count * width or axes[0 if width_first else -1] != width:
                continue
            rows = _equal_rows(tokens, _positions(value[None], width, width_first)[0])
            if rows is not None:
                return name, width_first, rows
    return None


def _example_gradients(task: Task, layer: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradients of a layer's output `[T, width]` and of all parameters for one random image."""
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: (value + _PARAMETER_NOISE * torch.randn(value.shape, generator=generator).to(value))
        for name, value in task.parameters().items()
    }
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    x = torch.rand(1, *task.input_shape, generator=generator).to(leaves[task.names[0]])
    target = next(iter(task.targets.values()))[:1]
    outputs: list[Tensor] = []
    handle = task.module(layer).register_forward_hook(lambda _module, _args, output: outputs.append(output))
    try:
        with torch.enable_grad():
            loss = task.loss(leaves, x, target)
    finally:
        handle.remove()
    sources = [outputs[0], *leaves.values()]
    output, *values = torch.autograd.grad(loss, sources, materialize_grads=True)
    is_convolution = isinstance(task.model.get_submodule(layer), nn.Conv2d)
    tokens = output[0].flatten(1).T if is_convolution else output[0].flatten(0, -2)
    return tokens, dict(zip(leaves, values, strict=True))


def _positions(value: Tensor, width: int, width_first: bool) -> Tensor:
    """A parameter or its gradient `[V, *shape]` as one row for every position, `[V, positions, width]`."""
    return (
        value.reshape(len(value), width, -1).transpose(1, 2)
        if width_first
        else value.reshape(len(value), -1, width)
    )


def _equal_rows(wanted: Tensor, rows: Tensor) -> Tensor | None:
    """The numbers `[T]` of those rows `[R, width]` that equal the wanted ones `[T, width]`, all different."""
    wanted, rows = wanted.double(), rows.double()
    distance, nearest = torch.cdist(wanted, rows, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    longest = wanted.norm(dim=1).amax()
    is_equal = bool(longest > 0) and bool((distance <= _SAME * longest).all())
    return nearest if is_equal and len(set(nearest.tolist())) == len(nearest) else None
