"""Soteria (Sun et al. 2021): the features that would tell most about an image stay out of the gradient."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner import checks
from refiner.core.gradients import Gradients, flatten, unflatten
from refiner.core.noise import NoiseSource
from refiner.core.task import Parameters, Task
from refiner.defenses.base import Batch, Defense
from refiner.defenses.sensitivity import estimated, exact, features, rows_at_a_time
from refiner.errors import ProtectionError, UnsupportedModelError

VARIANTS = ("improved", "original")
SENSITIVITIES = ("exact", "estimated")


@dataclass(frozen=True)
class Soteria(Defense):
    """Prunes those features r_i before the last linear layer whose ‖∂r_i/∂x‖ / |r_i| is smallest.

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
    """Whether all layers' gradients come from the pruned features, or the linear layer's alone ("original"),
    which an attacker gets round by leaving that layer out."""
    sensitivity: str = "exact"
    """Whether ‖∂r_i/∂x‖ is computed row by row or estimated from random directions."""
    probes: int = 16
    """How many directions an estimate takes."""
    chunk: int | None = None
    """Rows of the Jacobian, one for a sample and a feature or direction, at a time: bounds the memory. None
    takes as many as fit the device."""

    name: ClassVar[str] = "soteria"
    cost: ClassVar[str] = (
        "a backward pass for every feature, batched; estimated, a forward pass for every probe"
    )

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate < 1:
            raise checks.wrong("rate", self.rate, "a number in [0, 1)")
        checks.choice("variant", self.variant, VARIANTS)
        checks.choice("sensitivity", self.sensitivity, SENSITIVITIES)
        checks.integer("probes", self.probes, 1)
        if self.chunk is not None:
            checks.integer("chunk", self.chunk, 1)

    def guarantee(self) -> str:
        """None: the published bound is about one layer's gradient, and an attacker has the others."""
        if self.variant == "original":
            return "none: the published bound does not survive an attacker who leaves out the linear layer"
        return (
            "none: no bound is published for it; one image's upload shows which features are pruned, and "
            "below a rate of 0.5 an attacker who leaves out the linear layer gets through"
        )

    def kept(self, task: Task, x: Tensor, *, noise: NoiseSource | None = None) -> Tensor:
        """Which features of `x [V, B, *input]` stay, as 1 and 0 of shape `[V, B, F]`.

        >>> task = Task(nn.Linear(4, 3), example=torch.rand(2, 4))
        >>> Soteria(rate=0.5).kept(task, torch.tensor([[[0.1, 0.4, 0.3, 0.2]]])).tolist()
        [[[1.0, 0.0, 0.0, 1.0]]]
        """
        layer = last_linear(task)
        r = features(task, x, layer)
        count = math.floor(Fraction(str(self.rate)) * r.shape[-1])
        kept = torch.ones_like(r)
        if self.rate and not count:
            raise checks.wrong("rate", self.rate, f"0, or enough to prune one of {r.shape[-1]} features")
        if not count:
            return kept
        if self.sensitivity == "exact":
            norms = exact(task, x, layer, chunk=self.chunk)
        else:
            # Directions that differ from upload to upload would leave other features out each time. They are
            # no secret: those of every client are the same.
            source = noise or NoiseSource(seed=0)
            norms = estimated(task, x, layer, probes=self.probes, noise=source, chunk=self.chunk)
        if not bool(norms.isfinite().all()):
            raise ProtectionError("soteria: the features' slopes are not finite; nothing leaves")
        # A feature that is zero tells nothing by its gradient: it is pruned last.
        score = torch.where(r == 0, torch.inf, norms / r.abs())
        return kept.scatter(-1, score.argsort(dim=-1, stable=True)[..., :count], 0)

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        noise = batch.noise if batch.noise.seeded else None
        size = max(1, (self.chunk or rows_at_a_time(batch.x)) // batch.x.shape[1])
        parts = [
            self._gradients(task, x, y, self.kept(task, x, noise=noise))
            for x, y in zip(torch.split(batch.x, size), torch.split(batch.y, size), strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return {name: torch.cat([part[name] for part in parts]) for name in task.names}

    def _gradients(self, task: Task, x: Tensor, y: Tensor, kept: Tensor) -> Gradients:
        layer, stand_in = last_linear(task), _perturbed if self.variant == "improved" else _pruned

        def loss(parameters: Parameters, x: Tensor, y: Tensor, kept: Tensor) -> Tensor:
            with task.replaced(layer, stand_in(kept)):
                return task.loss(parameters, x, y)

        def flat(parameters: Parameters, x: Tensor, y: Tensor, kept: Tensor) -> Tensor:
            one = torch.func.grad(loss)
            if len(x) > 1:
                return flatten(torch.func.vmap(one, in_dims=(None, 0, 0, 0))(parameters, x, y, kept))
            return flatten({name: g[None] for name, g in one(parameters, x[0], y[0], kept[0]).items()})

        return unflatten(task, task.replay((self.variant, layer), flat, x, y, kept))


def last_linear(task: Task) -> str:
    """The name of the linear layer that runs last and is trained.

    >>> last_linear(Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.rand(2, 4)))
    '2'
    """
    for layer in reversed(task.layers):
        module = task.model.get_submodule(layer.name)
        trained = any(name.rpartition(".")[2] == "weight" for name in layer.parameters)
        if isinstance(module, nn.Linear) and trained:
            if type(module).forward is not nn.Linear.forward:
                raise UnsupportedModelError(
                    f"soteria: {layer.name}, the last linear layer, is a {type(module).__name__} with a "
                    "forward of its own, whose features can't be pruned; use another defence"
                )
            return layer.name
    raise UnsupportedModelError(
        "soteria: the model trains no nn.Linear, whose features it would prune; use another defence"
    )


StandIn = Callable[[nn.Linear, Tensor], Tensor]


def _perturbed(kept: Tensor) -> StandIn:
    """The layer on the pruned features: what follows and what comes before feel it."""
    return lambda module, r: F.linear(r * kept.view_as(r), module.weight, module.bias)


def _pruned(kept: Tensor) -> StandIn:
    """The layer as it is, but for its weight's gradient Σ_b δ_b (r_b ⊙ kept_b)ᵀ."""

    def call(module: nn.Linear, r: Tensor) -> Tensor:
        fixed = module.weight.detach()
        # The second term is zero, and the only one by which the loss feels the weight.
        felt = F.linear((r * kept.view_as(r)).detach(), module.weight - fixed)
        return F.linear(r, fixed, module.bias) + felt

    return call
