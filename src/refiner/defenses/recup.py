"""RecUP: a small perturbation of the gradient that misleads classifiers of a chosen attribute."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from refiner import checks
from refiner.core.gradients import Gradients, flatten
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.attribute_zoo import AttributeZoo, revealed_input
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.zoo_fitting import fit_zoo
from refiner.errors import DataError, SettingError

AIMS = ("boundary", "flip")
# Keeps the equations of classifiers that are nearly the same solvable.
_RIDGE = 1e-3
# The logits of an attribute that no classifier doubts.
_FAR = 20.0


@dataclass(frozen=True)
class RecUP(GradientTransform):
    """Perturbs a gradient within a budget so that substitute classifiers no longer see one attribute.

    Paper: Cui et al., RecUP-FL: Reconciling Utility and Privacy in Federated Learning via User-configurable
    Privacy Defense, AsiaCCS 2023. The classifiers are fitted beforehand, to public people and one state of
    the model (`RecUP.fit`). Each iteration first misleads all of them but one, then takes the step that from
    there misleads the one left out, so that the perturbation transfers to classifiers that it does not know.
    Steps are the shortest that give the classifiers their target logits, not signs of gradients.

    What it does not do: it hides the chosen attribute only, from classifiers like its own; an attacker who
    trains on perturbed uploads may still find it. Images stay as exposed as without it. The classifiers age
    as the model is trained.

    >>> from refiner.defenses import make_defense
    >>> make_defense("recup")
    Traceback (most recent call last):
    refiner.errors.SettingError: file = None: recup needs fitted attribute classifiers; ...
    """

    file: str | None = field(default=None, metadata={"private": True})
    """A file of `RecUP.save`, with the classifiers to mislead."""
    budget: float = 0.05
    """The greatest length of the perturbation, relative to the gradient's."""
    iterations: int = 20
    """Steps of the search for the perturbation."""
    aim: str = "flip"
    """Where to: towards the other value of the attribute, as in the paper ("flip"), which an attacker who
    knows of it can invert, or between both values ("boundary")."""
    _zoo: AttributeZoo | None = field(default=None, init=False, repr=False, compare=False)

    name: ClassVar[str] = "recup"
    reference: ClassVar[str] = (
        "Cui et al., RecUP-FL: Reconciling Utility and Privacy in Federated Learning via User-configurable "
        "Privacy Defense, AsiaCCS 2023"
    )
    cost: ClassVar[str] = "a search over inputs of the last layer; classifiers are fitted beforehand"

    def __post_init__(self) -> None:
        checks.number("budget", self.budget, 0, 1)
        checks.integer("iterations", self.iterations, 1)
        checks.choice("aim", self.aim, AIMS)
        if self.file is not None:
            if not isinstance(self.file, str | Path):
                raise checks.wrong("file", self.file, "the path of a file of RecUP.save")
            object.__setattr__(self, "_zoo", AttributeZoo.load(Path(self.file)))

    @classmethod
    def fit(
        cls,
        task: Task,
        images: Tensor,
        labels: Tensor,
        attribute: Tensor,
        *,
        groups: Tensor | None = None,
        batch: int = 8,
        clients: int = 400,
        members: int = 6,
        seed: int = 0,
        budget: float = 0.05,
        iterations: int = 20,
        aim: str = "flip",
    ) -> Self:
        """Return the defence with classifiers that were trained on simulated gradients of public people.

        Args:
            task: The model in the state in which clients will use it, and its loss.
            images: Public images `[M, *input]`.
            labels: Their labels `[M]`.
            attribute: Their attribute `[M]`, 0 or 1; −1 if unknown.
            groups: The person or other group of each image `[M]`; by default every image is one.
            batch: Images in a client's batch.
            clients: Simulated clients to train on, at least.
            members: The number of classifiers.
            seed: Seed of everything random; nothing of it depends on a client's data.
            budget: As the setting.
            iterations: As the setting.
            aim: As the setting.

        Returns:
            The defence. `save` keeps its classifiers in a file.

        Raises:
            DataError: There are too few images or people with one of the values.
            SettingError: A setting is out of range.
            UnsupportedModelError: The model's last layer is not linear with a bias.
        """
        defense = cls(budget=budget, iterations=iterations, aim=aim)
        people = torch.arange(len(attribute)) if groups is None else groups.cpu()
        zoo = fit_zoo(
            task,
            images,
            labels,
            attribute.cpu(),
            people,
            batch=batch,
            clients=clients,
            members=members,
            seed=seed,
        )
        object.__setattr__(defense, "_zoo", zoo)
        return defense

    @property
    def zoo(self) -> AttributeZoo:
        """The fitted classifiers.

        Raises:
            SettingError: There are none.
        """
        if self._zoo is None:
            fit = "`refiner recup fit` or RecUP.fit(…).save(PATH), then recup:file=PATH"
            problem = f"recup needs fitted attribute classifiers; fit them with {fit}"
            raise SettingError(field="file", value=None, expected="a file of RecUP.save", problem=problem)
        return self._zoo

    def check_ready(self) -> None:
        """Raise if there are no classifiers."""
        _ = self.zoo

    def with_budget(self, budget: float) -> Self:
        """Return the same defence with another budget.

        Args:
            budget: As the setting.
        """
        changed = replace(self, budget=budget, file=None)
        object.__setattr__(changed, "file", self.file)
        object.__setattr__(changed, "_zoo", self._zoo)
        return changed

    def save(self, path: str | Path) -> Path:
        """Write the classifiers to a file, for `recup:file=PATH`.

        Args:
            path: A safetensors file.

        Returns:
            The path.

        Raises:
            DataError: The file can't be written.
        """
        self.zoo.save(Path(path))
        return Path(path)

    def settings(self) -> dict[str, object]:
        """The settings, and a digest of the classifiers instead of their file."""
        digest = None if self._zoo is None else self._zoo.digest
        return {**super().settings(), "classifiers": digest}

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient with a perturbed last layer; nothing is drawn."""
        if not self.zoo.fits(gradient):
            raise DataError(
                f"task: recup was fitted to a model whose last layer has {self.zoo.classes} classes and "
                f"{len(self.zoo.mean)} inputs in {self.zoo.weight}; fit it to this one",
                field="task",
            )
        weight, bias = gradient[self.zoo.weight], gradient[self.zoo.bias]
        # Squares of a large gradient overflow float32; its length does not change what it reveals.
        length = torch.linalg.vector_norm(flatten(gradient), dim=1, keepdim=True, dtype=torch.float64)
        scale = torch.where(length > 0, length, 1)
        revealed = revealed_input(
            (weight.double() / scale[..., None]).float(), (bias.double() / scale).float()
        )
        change = self.change_of_input(revealed.mean, self.budget / revealed.cost)
        moved = revealed.present[..., None] * change[:, None]
        perturbed = (weight.double() + scale[..., None] * moved.double()).to(weight.dtype)
        return {**gradient, self.zoo.weight: perturbed}

    def change_of_input(self, inputs: Tensor, radius: Tensor) -> Tensor:
        """Return a change of the last layer's mean input that misleads the classifiers.

        Args:
            inputs: The mean inputs `[V, inputs]`.
            radius: The greatest length of each change, `[V, 1]`.

        Returns:
            The changes `[V, inputs]`.
        """
        zoo = self.zoo.to(inputs.device)
        everyone = list(range(len(zoo.members)))
        # What the classifiers say, not what is true: that is what an attacker would read.
        answers = zoo.logits(inputs, everyone)
        far = -_FAR * answers.mean(0).sign().expand_as(answers)
        targets = far if self.aim == "flip" else torch.zeros_like(answers)
        change = torch.zeros_like(inputs)
        for iteration in range(self.iterations):
            left_out = iteration % len(everyone)
            others = [member for member in everyone if member != left_out]
            ahead = _shortened(change + _shortest_step(zoo, inputs + change, others, targets), radius)
            step = _shortest_step(zoo, inputs + ahead, [left_out], targets)
            change = _shortened(change + step, radius)
        return change


def _shortest_step(zoo: AttributeZoo, inputs: Tensor, members: Sequence[int], targets: Tensor) -> Tensor:
    """The shortest change of inputs `[V, inputs]` after which some classifiers have their target logits.

    Exact for linear classifiers: the least-norm solution of the linearised equations.
    """
    with torch.enable_grad():
        point = inputs.detach().requires_grad_()
        logits = zoo.logits(point, members)
        rows = [torch.autograd.grad(logit.sum(), point, retain_graph=True)[0] for logit in logits]
    jacobian = torch.stack(rows, dim=1)
    gram = jacobian @ jacobian.mT
    size = gram.diagonal(dim1=1, dim2=2).mean(1)
    ridge = (_RIDGE * size).clamp_min(1e-20)[:, None, None] * torch.eye(len(members)).to(gram)
    missing = (targets[list(members)] - logits.detach()).T
    weights: Tensor = torch.linalg.solve_ex(gram + ridge, missing[..., None]).result
    return (weights * jacobian).sum(1)


def _shortened(change: Tensor, radius: Tensor) -> Tensor:
    length = change.norm(dim=1, keepdim=True)
    factor: Tensor = (radius / length.clamp_min(1e-30)).clamp_max(1)
    return change * factor
