"""What an attacker sees: an upload that fits the model, and the model's state of that round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from refiner import checks
from refiner.core.task import Task
from refiner.core.update import FLOATS, Update
from refiner.errors import DataError


@dataclass(frozen=True, eq=False)
class Observation:
    """One upload as the server sees it, with the model's state of that round.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> update = NoDefense().protect(task, torch.rand(4, 1, 3, 32, 32), torch.zeros(4, 1, dtype=torch.long))
    >>> seen = Observation.of(task, update)
    >>> seen.victims, seen.samples
    (4, 1)
    """

    task: Task
    parameters: Mapping[str, Tensor]
    gradient: Tensor
    """`[V, N]`"""
    samples: int
    labels: Tensor | None = None
    """`[V, B]`, where the threat model grants them."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """What the model's batch norms remembered in that round (see `remembered_statistics`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise DataError(f"task = {type(self.task).__name__}: expected a Task")
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise DataError(str(checks.wrong("samples", self.samples, "an integer ≥ 1")))
        _check_parameters(self.task, self.parameters)
        _check_gradient(self.task, self.gradient)
        if self.labels is not None:
            _check_labels(self.task, self.labels, (len(self.gradient), self.samples))

    @classmethod
    def of(cls, task: Task, update: Update, *, labels: Tensor | None = None) -> "Observation":
        """See `update`, made with `task`'s model as it is now."""
        _fits(task, update)
        # An attack on a half-precision model computes in float32: its objective must fall by small steps.
        now = {name: _wide(value.clone()) for name, value in task.parameters().items()}
        gradient = torch.cat([update.tensors[name].flatten(1) for name in task.names], dim=1)
        device = next(iter(now.values())).device
        kept = remembered_statistics(task.model)
        return cls(task, now, _wide(gradient.to(device)), update.samples, labels, kept)

    @property
    def victims(self) -> int:
        """How many victims were seen."""
        return len(self.gradient)


def remembered_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Running mean and variance `[2, channels]` of every batch norm that keeps them, by module name.

    >>> list(remembered_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))))
    ['1']
    """
    return {
        name: torch.stack([module.running_mean, module.running_var])
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
    }


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t


def _fits(task: Task, update: Update) -> None:
    missing = [name for name in task.names if name not in update.tensors]
    extra = [name for name in update.names if name not in task.shapes]
    for names, what in ((missing, "lacks"), (extra, "has besides")):
        if names:
            raise DataError(f"update {what} {', '.join(names[:3])}: it was made with another model")
    for name, shape in update.shapes.items():
        if shape != task.shapes[name]:
            raise DataError(f"update: {name} has shape {list(shape)}, expected {list(task.shapes[name])}")


def _check_parameters(task: Task, parameters: object) -> None:
    if not isinstance(parameters, Mapping):
        raise DataError(f"parameters = {type(parameters).__name__}: expected a mapping by name")
    missing = [name for name in task.names if name not in parameters]
    extra = [str(name) for name in parameters if name not in task.shapes]
    for names, what in ((missing, "lacks"), (extra, "has besides")):
        if names:
            raise DataError(f"parameters: {what} {', '.join(names[:3])}, expected those of the task's model")
    for name, shape in task.shapes.items():
        value = parameters[name]
        if not isinstance(value, Tensor) or value.shape != shape:
            found = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise DataError(f"parameters: {name} has {found}, expected {list(shape)}")
    # What is computed from them comes in their order, and is compared with a gradient in the task's.
    if tuple(parameters) != task.names:
        raise DataError("parameters: expected them in the order of the task's names")


def _check_gradient(task: Task, gradient: object) -> None:
    if not isinstance(gradient, Tensor):
        raise DataError(f"gradient = {type(gradient).__name__}: expected a tensor [V, {task.size}]")
    if gradient.dtype not in FLOATS:
        raise DataError(f"gradient = {gradient.dtype}: expected floats of 16, 32 or 64 bits")
    if gradient.ndim != 2 or gradient.shape[1] != task.size or not len(gradient):
        raise DataError(
            f"gradient = {list(gradient.shape)}: expected shape [V, {task.size}], V ≥ 1, "
            "a value for every parameter"
        )
    # A norm, which a value that is not finite makes so: one pass without a copy, and one wait for a GPU.
    if not bool(torch.linalg.vector_norm(gradient.detach(), math.inf).isfinite()):
        raise DataError("gradient: holds NaN or infinity")


def _check_labels(task: Task, labels: object, wanted: tuple[int, int]) -> None:
    if not isinstance(labels, Tensor) or labels.dtype != torch.long or labels.shape != wanted:
        raise DataError(f"labels: expected torch.int64 of shape {list(wanted)}, a label for every sample")
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or high >= task.classes:
        raise DataError(f"labels = {low if low < 0 else high}: expected values in [0, {task.classes - 1}]")


def check_together(observations: Sequence[Observation]) -> None:
    """Refuse uploads that can't be of the same victims."""
    if not observations:
        raise DataError("observations: expected at least one")
    first = observations[0]
    for other in observations[1:]:
        if other.task is not first.task or other.gradient.shape != first.gradient.shape:
            raise DataError("observations: expected the same task and the same victims in all of them")
        if other.samples != first.samples:
            raise DataError(f"observations: batches of {first.samples} and of {other.samples} samples")
        one, another = first.labels, other.labels
        if (one is None) != (another is None):
            raise DataError("observations: some hold labels and some don't, expected all or none")
        if one is not None and another is not None and not torch.equal(one.cpu(), another.cpu()):
            raise DataError("observations: the labels differ, expected the same victims in all of them")
