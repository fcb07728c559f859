"""Each candidate's own gradient beside the uploads, layer by layer, and scores relative to public images."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from refiner.attacks import Observation, Simulator
from refiner.core.gradients import flatten, gradients
from refiner.errors import DataError
from refiner.inference.membership import Candidates

# Values of candidates' gradients that are kept at a time.
_VALUES_AT_ONCE = 2**26
_LEAST_SPREAD = 1e-12
# The variance of all classes counts as much as so many images of a class.
_POOLED_WEIGHT = 4
# The fewest public images of a class that have a standard deviation.
_LEAST_OF_CLASS = 2
# Public images that stand in for those of a class without any.
_STAND_INS = 8


class LayerProducts(NamedTuple):
    """Inner products of gradients with uploads and the gradients' squared norms, for each of L layers."""

    products: Tensor
    """`[V, K, L]`"""
    squares: Tensor
    """`[V, K, L]`"""
    upload_squares: Tensor
    """`[V, 1, L]`"""

    @property
    def cosines(self) -> Tensor:
        """Cosines of whole gradients with whole uploads, `[V, K]`."""
        norms = self.squares.sum(-1).sqrt() * self.upload_squares.sum(-1).sqrt()
        return self.products.sum(-1) / norms.clamp_min(torch.finfo(norms.dtype).tiny)

    @property
    def layer_cosines(self) -> Tensor:
        """Cosines of each layer, `[V, K, L]`."""
        norms = self.squares.sqrt() * self.upload_squares.sqrt()
        return self.products / norms.clamp_min(torch.finfo(norms.dtype).tiny)


def sample_gradients(
    observation: Observation, x: Tensor, y: Tensor, at_once: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the gradients `[n, N]` of single samples in the observed state of the model, a chunk at a time.

    Args:
        observation: The uploads, with the model's parameters in that round.
        x: Samples `[S, *input]`.
        y: Labels `[S]`.
        at_once: Samples of a chunk; None for as many as memory allows.
    """
    like = observation.gradient
    chunk = at_once or max(1, min(1024, _VALUES_AT_ONCE // observation.task.size))
    for first in range(0, len(x), chunk):
        rows = slice(first, min(first + chunk, len(x)))
        single = x[rows, None].to(like), y[rows, None].to(like.device)
        yield rows, flatten(gradients(observation.task, *single, parameters=observation.parameters))


def candidate_products(observation: Observation, candidates: Candidates) -> LayerProducts:
    """Return how the gradient of each candidate of a client is aligned with the client's upload.

    Args:
        observation: One upload of each client.
        candidates: K samples for each.

    >>> from refiner import LeNet, NoDefense, Task
    >>> x, y = torch.rand(2, 1, 3, 32, 32), torch.tensor([[1], [2]])
    >>> task = Task(LeNet(), example=x[0])
    >>> observation = Observation.of(task, NoDefense().protect(task, x, y))
    >>> candidate_products(observation, Candidates(x, y)).cosines.round(decimals=3).tolist()
    [[1.0], [1.0]]
    """
    x, y = candidates
    parts = []
    owners = torch.arange(len(x)).repeat_interleave(x.shape[1]).to(observation.gradient.device)
    for rows, own in sample_gradients(observation, x.flatten(0, 1), y.flatten()):
        parts.append(
            (_by_layer(observation, own * observation.gradient[owners[rows]]), _squares(observation, own))
        )
    products, squares = (torch.cat(part).view(*y.shape, -1) for part in zip(*parts, strict=True))
    return LayerProducts(products, squares, _squares(observation, observation.gradient)[:, None])


def public_products(observation: Observation, images: Tensor, labels: Tensor) -> LayerProducts:
    """Return how the gradients of public images are aligned with every client's upload, `[V, M, L]`.

    Args:
        observation: One upload of each client.
        images: Public images `[M, *input]`.
        labels: Their labels `[M]`.
    """
    uploads = torch.split(observation.gradient, _layer_sizes(observation), dim=1)
    parts = []
    for _, own in sample_gradients(observation, images, labels):
        layers = torch.split(own, _layer_sizes(observation), dim=1)
        products = torch.stack([u @ g.mT for u, g in zip(uploads, layers, strict=True)], dim=2)
        parts.append((products, _squares(observation, own)))
    products = torch.cat([part[0] for part in parts], dim=1)
    squares = torch.cat([part[1] for part in parts])[None].expand_as(products)
    return LayerProducts(products, squares, _squares(observation, observation.gradient)[:, None])


def relative_to_class(scores: Tensor, y: Tensor, public: Tensor, labels: Tensor) -> Tensor:
    """Return scores in standard deviations from the mean of public images of the same class.

    An upload is aligned with the gradients of all images of the classes in its batch, far more than with
    others. What is left after the mean of a class is subtracted is about the sample itself. The variance of a
    class with few images is drawn towards that of all classes.

    Args:
        scores: Of candidates, `[V, K]` or `[V, K, F]`.
        y: The candidates' labels `[V, K]`.
        public: The same scores of public images, `[V, M]` or `[V, M, F]`.
        labels: Their labels `[M]`.

    Returns:
        Scores of the same shape.

    Raises:
        DataError: A candidate's class has fewer than two public images.

    >>> public, labels = torch.tensor([[1.0, 3.0, 7.0, 9.0]]), torch.tensor([0, 0, 1, 1])
    >>> relative_to_class(torch.tensor([[2.0, 10.0]]), torch.tensor([[0, 1]]), public, labels)
    tensor([[0.0000, 1.4142]])
    """
    result = torch.empty_like(scores)
    pooled = _pooled_variance(public, labels)
    for label in torch.unique(y).tolist():
        of_class = labels == label
        count = int(of_class.sum())
        if count < _LEAST_OF_CLASS:
            problem = (
                f"{count} of class {label}, expected at least {_LEAST_OF_CLASS} of every candidate's class"
            )
            raise DataError(field="public", value=len(labels), problem=problem)
        group = public[:, of_class.to(public.device)]
        squares = (count - 1) * group.var(1, keepdim=True) + _POOLED_WEIGHT * pooled
        spread = (squares / (count - 1 + _POOLED_WEIGHT)).sqrt().clamp_min(_LEAST_SPREAD)
        here = (y == label).to(scores.device)
        result = torch.where(
            here.view(*here.shape, *[1] * (scores.ndim - 2)),
            (scores - group.mean(1, keepdim=True)) / spread,
            result,
        )
    return result


def _pooled_variance(public: Tensor, labels: Tensor) -> Tensor:
    """The variance `[V, 1, …]` of scores around the means of their classes, over all classes."""
    squares, count = torch.zeros_like(public[:, :1]), 0
    for label in torch.unique(labels).tolist():
        group = public[:, (labels == label).to(public.device)]
        squares += (group - group.mean(1, keepdim=True)).square().sum(1, keepdim=True)
        count += group.shape[1] - 1
    return squares / max(count, 1)


def with_candidate_classes(images: Tensor, labels: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return public images to compare with, extended where a candidate's class has fewer than two of them.

    For such a class, a person's identity for example, images of other classes stand in, with that label: the
    gradient depends on the label more than on the image.

    Args:
        images: Public images `[M, *input]`.
        labels: Their labels `[M]`.
        y: The candidates' labels.
        seed: Seed of the draw.

    >>> images, labels = torch.rand(9, 4), torch.tensor([0] * 9)
    >>> with_candidate_classes(images, labels, torch.tensor([[0, 3]]), seed=0)[1].tolist()
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3]
    """
    wanted = torch.unique(y).to(labels.device)
    counts = (labels[None] == wanted[:, None]).sum(1)
    generator = torch.Generator().manual_seed(seed)
    parts = [(images, labels)]
    for label in wanted[counts < _LEAST_OF_CLASS].tolist():
        order = torch.randperm(len(images), generator=generator)[:_STAND_INS]
        parts.append((images[order.to(images.device)], torch.full_like(labels[: len(order)], label)))
    extended = [torch.cat(part) for part in zip(*parts, strict=True)]
    return extended[0], extended[1]


def choose_public(simulator: Simulator, count: int, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return at most `count` public images and labels, drawn with a seed, and stand-ins for rare classes.

    Args:
        simulator: All public images.
        count: The most to take.
        y: The candidates' labels, see `with_candidate_classes`.
        seed: Seed of the draw.
    """
    order = torch.randperm(len(simulator.images), generator=torch.Generator().manual_seed(seed))[:count]
    images = simulator.images[order.to(simulator.images.device)]
    return with_candidate_classes(images, simulator.labels[order.to(simulator.labels.device)], y, seed)


def _layer_sizes(observation: Observation) -> list[int]:
    task = observation.task
    return [sum(task.shapes[name].numel() for name in layer.parameters) for layer in task.layers]


def _by_layer(observation: Observation, values: Tensor) -> Tensor:
    """The sums of values `[n, N]` over each layer, `[n, L]`."""
    return torch.stack([part.sum(1) for part in torch.split(values, _layer_sizes(observation), dim=1)], dim=1)


def _squares(observation: Observation, values: Tensor) -> Tensor:
    return _by_layer(observation, values.square())
