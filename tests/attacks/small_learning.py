"""A small model, public images and a simulator, for the attacks that learn."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from refiner.attacks import Observation, SimulatedUploads, Simulator
from refiner.core import Task

SIDE = 8
CLASSES = 4


def smooth_images(count: int, seed: int) -> Tensor:
    """Images of four random colours, enlarged: few numbers describe them."""
    coarse = torch.rand(count, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=SIDE, mode="bilinear")


def small_task(first_seed: int = 0) -> Task:
    """A model whose gradients are as long as an image has pixels, and more."""
    torch.manual_seed(first_seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 6), nn.GELU(), nn.Linear(6, CLASSES))
    return Task(model, example=torch.rand(1, 3, SIDE, SIDE))


Encode = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Images `[V, B, …]` and labels `[V, B]` to uploads `[V, N]`, with noise from the generator."""


def simulator_of(task: Task, encode: Encode, count: int = 120, states: int = 1) -> Simulator:
    """A simulator whose uploads `encode` makes: any leak can be planted."""

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        uploads = [encode(x, y, torch.Generator().manual_seed(seed + state)) for state in range(states)]
        return SimulatedUploads(uploads, None)

    labels = torch.arange(count) % CLASSES
    return Simulator(smooth_images(count, seed=1), labels, protect)


def observe(task: Task, encode: Encode, x: Tensor, y: Tensor, states: int = 1) -> list[Observation]:
    """The victims' uploads, with noise that no simulated client has."""
    draws = [torch.Generator().manual_seed(2**50 + state) for state in range(states)]
    return [Observation(task, task.parameters(), encode(x, y, draw), x.shape[1]) for draw in draws]


def planted(task: Task, strength: float = 1.0, noise: float = 0.1) -> Encode:
    """A fixed linear map of each image, in the rows of its place in the order of labels, plus noise."""
    pixels = 3 * SIDE**2
    matrix = torch.randn(4, pixels, task.size, generator=torch.Generator().manual_seed(5)) / pixels**0.5
    # The last bias shows the labels, as the gradient of any model does.
    matrix[:, :, -CLASSES:] = 0

    def encode(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        order = y.argsort(1)
        sorted_x = torch.stack([batch[rows] for batch, rows in zip(x, order, strict=True)]).flatten(2)
        uploads = strength * torch.einsum("vbp,bpn->vn", sorted_x, matrix[: x.shape[1]])
        uploads = uploads + noise * torch.randn(uploads.shape, generator=generator)
        uploads[:, -CLASSES:] = 1 / CLASSES - nn.functional.one_hot(y, CLASSES).float().mean(1)
        return uploads

    return encode


def error_of(x: Tensor, truth: Sequence[Tensor] | Tensor) -> float:
    """The mean squared error."""
    return float((x - torch.as_tensor(truth)).square().mean())
