"""Soteria: features that would reveal most about an image are pruned from the gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner import checks
from refiner.core.finite import make_finite_
from refiner.core.gradients import Gradients, flatten
from refiner.core.module_inputs import override_output
from refiner.core.noise import NoiseSource
from refiner.core.task import Parameters, Task
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.jacobian_norms import estimated_norms, exact_norms, layer_input, rows_at_a_time
from refiner.defenses.result import Upload
from refiner.defenses.wire_format import count_at_rate
from refiner.errors import ProtectionError, UnsupportedModelError

VARIANTS = ("improved", "original")
SENSITIVITIES = ("exact", "estimated")


@dataclass(frozen=True)
class Soteria(Defense):
    """Prunes those features r_i before the last linear layer whose ‖∂r_i/∂x‖ / |r_i| is smallest.

    Paper: Sun et al., Soteria: Provable Defense against Privacy Leakage in Federated Learning from
    Representation Perspective, CVPR 2021. The "improved" variant is this project's reading of the form that
    the Refiner paper compares with (docs/interpretations.md).

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(1, 3, 32, 32), torch.tensor([3])
    >>> update = Soteria(rate=0.25).protect(Task(LeNet(), example=x), x, y)
    >>> int((update.tensors["head.weight"] == 0).all(1).sum())  # columns of 768
    192
    >>> Soteria(rate=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: rate = 1: expected a number in [0, 1)
    """

    rate: float = 0.5
    """Share of the features that are pruned; the paper varies it from 0.1 to 0.9."""
    variant: str = "improved"
    """"improved" computes the gradients of all layers from the pruned features, "original" only that of the
    linear layer, which an attacker evades by ignoring that layer."""
    sensitivity: str = "exact"
    """Compute ‖∂r_i/∂x‖ exactly, or estimate it from random directions ("estimated")."""
    probes: int = 16
    """Number of random directions for an estimate."""
    chunk: int | None = None
    """Rows of the Jacobian (one per sample and feature or direction) computed at a time: bounds the memory.
    None takes as many as fit the device."""

    name: ClassVar[str] = "soteria"
    reference: ClassVar[str] = (
        "Sun et al., Soteria: Provable Defense against Privacy Leakage in Federated Learning from "
        "Representation Perspective, CVPR 2021"
    )
    cost: ClassVar[str] = "a backward pass per feature, batched; estimated: a forward pass per probe"

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate < 1:
            raise checks.wrong("rate", self.rate, "a number in [0, 1)")
        checks.choice("variant", self.variant, VARIANTS)
        checks.choice("sensitivity", self.sensitivity, SENSITIVITIES)
        checks.integer("probes", self.probes, 1)
        if self.chunk is not None:
            checks.integer("chunk", self.chunk, 1)

    def guarantee(self) -> str:
        """Nothing: the published bound is about one layer's gradient, and an attacker sees all layers."""
        if self.variant == "original":
            return "none: the published bound does not hold against an attacker who ignores the linear layer"
        return (
            "none: no bound is published for it; a single image's upload shows which features are pruned, "
            "and below a rate of 0.5 an attacker who ignores the linear layer succeeds"
        )

    def feature_mask(
        self, task: Task, x: Tensor, *, noise: NoiseSource | None = None, training: bool = False
    ) -> Tensor:
        """Return which features are kept (1) and which are pruned (0).

        Args:
            task: The model and its loss.
            x: Inputs `[V, B, *input]`.
            noise: The source of random directions for an estimate; None uses a fixed, public one.
            training: Whether derivatives that are not finite are replaced instead of raising an error.

        Returns:
            A mask `[V, B, F]` of the features before the last linear layer.

        >>> task = Task(nn.Linear(4, 3), example=torch.rand(2, 4))
        >>> Soteria(rate=0.5).feature_mask(task, torch.tensor([[[0.1, 0.4, 0.3, 0.2]]])).tolist()
        [[[1.0, 0.0, 0.0, 1.0]]]
        """
        layer = last_linear(task)
        r = layer_input(task, x, layer)
        count = count_at_rate(self.rate, r.shape[-1])
        mask = torch.ones_like(r)
        if self.rate and not count:
            raise checks.wrong("rate", self.rate, f"0, or enough to prune one of {r.shape[-1]} features")
        if not count:
            return mask
        if self.sensitivity == "exact":
            norms = exact_norms(task, x, layer, chunk=self.chunk)
        else:
            # The same public directions for all clients and uploads: new ones would prune other features each
            # time, and together the uploads would reveal them all.
            source = noise or NoiseSource(seed=0)
            norms = estimated_norms(task, x, layer, probes=self.probes, noise=source, chunk=self.chunk)
        if training:
            make_finite_(norms)
        elif not bool(norms.isfinite().all()):
            raise ProtectionError("soteria: the features' derivatives are not finite; no update was made")
        # A feature that is zero contributes nothing to the weight gradient: it is pruned last.
        score = torch.where(r == 0, torch.inf, norms / r.abs())
        return mask.scatter(-1, score.argsort(dim=-1, stable=True)[..., :count], 0)

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """The gradient from the pruned features, a chunk of victims at a time."""
        noise = batch.noise if batch.noise.seeded else None
        victims = max(1, (self.chunk or rows_at_a_time(batch.x)) // batch.x.shape[1])
        chunks = [
            self._gradients(task, x, y, self.feature_mask(task, x, noise=noise, training=batch.training))
            for x, y in zip(torch.split(batch.x, victims), torch.split(batch.y, victims), strict=True)
        ]
        if len(chunks) == 1:
            return Upload(chunks[0])
        return Upload({name: torch.cat([chunk[name] for chunk in chunks]) for name in task.names})

    def _gradients(self, task: Task, x: Tensor, y: Tensor, mask: Tensor) -> Gradients:
        layer, forward = (
            last_linear(task),
            _prune_features if self.variant == "improved" else _prune_weight_grad,
        )

        def loss(parameters: Parameters, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            with override_output(task, layer, forward(mask)):
                return task.loss(parameters, x, y)

        def flat(parameters: Parameters, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            victim_grad = torch.func.grad(loss)
            if len(x) > 1:
                return flatten(torch.func.vmap(victim_grad, in_dims=(None, 0, 0, 0))(parameters, x, y, mask))
            single = victim_grad(parameters, x[0], y[0], mask[0])
            return flatten({name: g[None] for name, g in single.items()})

        return task.unflatten(task.graphed_call((self.variant, layer), flat, x, y, mask))


def last_linear(task: Task) -> str:
    """The name of the trained linear layer that runs last.

    >>> last_linear(Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.rand(2, 4)))
    '2'
    """
    for layer in reversed(task.layers):
        module = task.model.get_submodule(layer.name)
        trained = any(name.rpartition(".")[2] == "weight" for name in layer.parameters)
        if isinstance(module, nn.Linear) and trained:
            if type(module).forward is not nn.Linear.forward:
                raise UnsupportedModelError(
                    f"soteria: {layer.name}, the last linear layer, is a {type(module).__name__} with its "
                    "own forward, whose features can't be pruned; use another defence"
                )
            return layer.name
    raise UnsupportedModelError(
        "soteria: the model trains no nn.Linear, whose features it would prune; use another defence"
    )


LinearForward = Callable[[nn.Linear, Tensor], Tensor]


def _prune_features(mask: Tensor) -> LinearForward:
    """The layer on the pruned features: the gradients of all layers change."""
    return lambda module, r: F.linear(r * mask.view_as(r), module.weight, module.bias)


def _prune_weight_grad(mask: Tensor) -> LinearForward:
    """The layer unchanged, except that its weight's gradient is Σ_b δ_b (r_b ⊙ mask_b)ᵀ."""

    def forward(module: nn.Linear, r: Tensor) -> Tensor:
        fixed = module.weight.detach()
        # This term is zero, and the only one through which the loss depends on the weight.
        weight_term = F.linear((r * mask.view_as(r)).detach(), module.weight - fixed)
        return F.linear(r, fixed, module.bias) + weight_term

    return forward
