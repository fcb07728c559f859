"""Substitute attribute classifiers on the mean input of the last layer, which a gradient reveals."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from refiner.files import file_error, write_atomically

# The classifiers take turns in their architecture: linear, or with a hidden layer of this width.
_WIDTHS = (0, 16, 64)
_STEPS, _RATE, _DECAY = 80, 0.02, 0.1


class RevealedInput(NamedTuple):
    """The mean input of the last linear layer that a gradient reveals, and what changing it takes."""

    mean: Tensor
    """h `[V, inputs]`; 0 where the gradient reveals none."""
    present: Tensor
    """The share that each class's row gets of a change of h, `[V, classes]`: equal shares, or all 0."""
    cost: Tensor
    """The length of the gradient's shortest change that changes h by a unit vector, `[V, 1]`."""


def revealed_input(weight: Tensor, bias: Tensor) -> RevealedInput:
    """Return the mean input h of the last layer over a batch, as its gradient reveals it.

    Row k of the weight's gradient is the mean over the batch of δ_k h, and δ_k is negative only for a sample
    with label k. The rows with a negative bias, summed and divided by the sum of these biases, are the mean
    of h over the batch but for what other classes add.

    Args:
        weight: The gradient of the last layer's weight `[V, classes, inputs]`.
        bias: That of its bias `[V, classes]`.

    Returns:
        h, and how to change it: rows change equally.

    >>> h = torch.tensor([[1.0, 2.0]])
    >>> bias = torch.tensor([[-0.6, 0.3, 0.3]])
    >>> revealed_input(bias[..., None] * h[:, None], bias).mean
    tensor([[1., 2.]])
    """
    negative = (bias < 0).to(weight)
    count = negative.sum(1, keepdim=True)
    total = (negative * bias).sum(1, keepdim=True)
    is_known = (total < 0) & total.isfinite()
    divisor = torch.where(is_known, total, 1)
    mean = (negative[:, None] @ weight)[:, 0] / divisor
    share = torch.where(is_known, negative / count.clamp_min(1) * divisor, 0)
    cost = torch.where(is_known, divisor.abs() / count.clamp_min(1).sqrt(), 1)
    return RevealedInput(torch.where(is_known, mean, 0), share, cost)


@dataclass(frozen=True, eq=False)
class AttributeZoo:
    """Classifiers of a client's attribute from its gradient, which `RecUP` perturbs gradients against.

    They see the mean input of the last layer (`revealed_input`). Linear functions of the gradient itself show
    nothing: the signs of its entries depend on the labels. Each classifier is trained on half of the inputs
    and on resampled clients; some are linear, some have a hidden layer.

    Args:
        weight: The name of the last linear layer's weight.
        bias: The name of its bias.
        classes: The number of its rows.
        mean: Of every input over simulated clients, `[inputs]`.
        spread: Its standard deviation, `[inputs]`.
        members: The weights of every classifier: `[1, inputs]` and `[1]` of a linear one, `[width, inputs]`,
            `[width]`, `[1, width]` and `[1]` of another.
        accuracy: The mean balanced accuracy of the classifiers for people who were held out.
    """

    weight: str
    bias: str
    classes: int
    mean: Tensor
    spread: Tensor
    members: tuple[tuple[Tensor, ...], ...]
    accuracy: float = 0.0

    def logits(self, inputs: Tensor, members: Sequence[int]) -> Tensor:
        """Return the logits `[n, V]` of some classifiers.

        Args:
            inputs: The mean input of the last layer, `[V, inputs]`.
            members: Which classifiers.
        """
        values = (inputs - self.mean) / self.spread
        return torch.stack([_logit(values, self.members[member]) for member in members])

    def fits(self, gradient: Mapping[str, Tensor]) -> bool:
        """Return whether a gradient is of a model with the last layer that the classifiers were fitted to."""
        weight, bias = gradient.get(self.weight), gradient.get(self.bias)
        if weight is None or bias is None:
            return False
        return weight.shape[1:] == (self.classes, len(self.mean)) and bias.shape[1:] == (self.classes,)

    def to(self, device: torch.device) -> "AttributeZoo":
        """Return the same on another device."""
        members = tuple(tuple(t.to(device) for t in member) for member in self.members)
        return replace(self, mean=self.mean.to(device), spread=self.spread.to(device), members=members)

    @property
    def digest(self) -> str:
        """The beginning of the SHA-256 of all weights."""
        digest = hashlib.sha256()
        for tensor in self._tensors():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:12]

    def save(self, path: Path) -> None:
        """Write the classifiers to a safetensors file.

        Raises:
            DataError: The file can't be written.
        """
        tensors = {"mean": self.mean, "spread": self.spread}
        for number, member in enumerate(self.members):
            tensors |= {f"member.{number}.{part}": tensor for part, tensor in enumerate(member)}
        about = {name: getattr(self, name) for name in ("weight", "bias", "classes", "accuracy")}
        about["members"] = len(self.members)
        content = save(
            {name: t.cpu().contiguous() for name, t in tensors.items()}, {"recup": json.dumps(about)}
        )
        write_atomically(path, content)

    @classmethod
    def load(cls, path: Path) -> "AttributeZoo":
        """Return the classifiers in a file that `save` wrote.

        Raises:
            DataError: The file is missing, damaged or something else.

        >>> AttributeZoo.load(Path("absent"))
        Traceback (most recent call last):
        refiner.errors.DataError: absent: no attribute classifiers (...), expected a file of RecUP.save
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["recup"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            names = [[f"member.{number}.{part}" for part in range(4)] for number in range(about["members"])]
            members = tuple(tuple(tensors[name] for name in parts if name in tensors) for parts in names)
            zoo = cls(
                str(about["weight"]),
                str(about["bias"]),
                int(about["classes"]),
                tensors["mean"],
                tensors["spread"],
                members,
                float(about["accuracy"]),
            )
            zoo._check()
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:100]
            expected = "a file of RecUP.save"
            problem = f"no attribute classifiers ({reason}), expected {expected}"
            raise file_error(path, problem, expected) from error
        return zoo

    def _tensors(self) -> Iterator[Tensor]:
        yield from (self.mean, self.spread)
        yield from (tensor for member in self.members for tensor in member)

    def _check(self) -> None:
        """Raise a ValueError if the weights do not fit each other or are not finite."""
        if len(self.members) < 2 or not all(bool(tensor.isfinite().all()) for tensor in self._tensors()):
            raise ValueError("fewer than two classifiers, or weights that are not finite")
        if self.mean.ndim != 1 or self.spread.shape != self.mean.shape or not bool((self.spread > 0).all()):
            raise ValueError("mean and spread of other sizes")
        self.logits(self.mean[None], range(len(self.members)))


def train_members(
    inputs: Tensor, values: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor, tuple[tuple[Tensor, ...], ...]]:
    """Return mean and spread of the inputs, and the weights of classifiers trained on them.

    Args:
        inputs: The mean input of the last layer for simulated clients, `[n, inputs]`.
        values: The attribute of each client, 0 or 1.
        count: The number of classifiers.
        seed: Seed of the resamples and the weights.
    """
    generator = torch.Generator().manual_seed(seed)
    mean, spread = inputs.mean(0), inputs.std(0)
    spread = torch.where(spread > 1e-12, spread, 1)
    standardised, targets = (inputs - mean) / spread, values.to(inputs)
    widths = [_WIDTHS[number % len(_WIDTHS)] for number in range(count)]
    return mean, spread, tuple(_train(standardised, targets, width, generator) for width in widths)


def _train(inputs: Tensor, targets: Tensor, width: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """The weights of one classifier, trained on half of the inputs of resampled clients."""
    rows = torch.randint(len(inputs), (len(inputs),), generator=generator).to(inputs.device)
    used = (torch.rand(inputs.shape[1], generator=generator) < 0.5).to(inputs)
    x, t = inputs[rows] * used, targets[rows]
    size = inputs.shape[1]
    shapes = [(width, size), (width,), (1, width), (1,)] if width else [(1, size), (1,)]
    weights = [
        nn.Parameter((torch.randn(shape, generator=generator) / size**0.5).to(inputs)) for shape in shapes
    ]
    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=_DECAY)
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(F.binary_cross_entropy_with_logits(_logit(x, weights), t))
            optimizer.step()
    first, *rest = (weight.detach() for weight in weights)
    return (first * used, *rest)


def _logit(values: Tensor, weights: Sequence[Tensor]) -> Tensor:
    if len(weights) == 2:
        return F.linear(values, *weights)[:, 0]
    return F.linear(F.gelu(F.linear(values, *weights[:2])), *weights[2:])[:, 0]
