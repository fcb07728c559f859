"""What an attacker observes: an upload that fits the model, and the model's state in that round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from refiner.core.task import Task
from refiner.core.update import FLOATS, Update
from refiner.errors import DataError


@dataclass(frozen=True, eq=False)
class Observation:
    """One upload of each of V victims as the server sees it, with the model's state in that round.

    Usually made by `Observation.of`; one made by hand is checked in the same way.

    Args:
        task: The model and its loss.
        parameters: The model's parameters in that round, by name, in the order of `task.names`.
        gradient: The uploads `[V, N]`, one value for every parameter.
        samples: The batch size B.
        labels: The victims' labels `[V, B]`, where the threat model grants them.
        statistics: Running statistics of the model's batch norms in that round (see `running_statistics`).

    Raises:
        DataError: A part does not fit the task, or the gradient contains NaN or infinity.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> update = NoDefense().protect(task, torch.rand(4, 1, 3, 32, 32), torch.zeros(4, 1, dtype=torch.long))
    >>> observation = Observation.of(task, update)
    >>> observation.victims, observation.samples
    (4, 1)
    """

    task: Task
    parameters: Mapping[str, Tensor]
    gradient: Tensor
    samples: int
    labels: Tensor | None = None
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise _wrong("task", type(self.task).__name__, "a Task")
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise DataError(field="samples", value=self.samples, expected="an integer ≥ 1")
        _check_parameters(self.task, self.parameters)
        _check_gradient(self.task, self.gradient)
        if self.labels is not None:
            _check_labels(self.task, self.labels, (len(self.gradient), self.samples))

    @classmethod
    def of(cls, task: Task, update: Update, *, labels: Tensor | None = None) -> "Observation":
        """Return the observation of `update`, which was made with the present parameters of `task`.

        Args:
            task: The model and its loss.
            update: The upload of a defence's `protect`.
            labels: The victims' labels `[V, B]`, where the threat model grants them.

        Returns:
            The observation.

        Raises:
            DataError: The update was made with another model, or the labels do not fit it.
        """
        _check_update(task, update)
        # An attack on a half-precision model computes in float32: its objective decreases by small steps.
        parameters = {name: _at_least_float32(value.clone()) for name, value in task.parameters().items()}
        gradient = torch.cat([update.tensors[name].flatten(1) for name in task.names], dim=1)
        device = next(iter(parameters.values())).device
        statistics = running_statistics(task.model)
        gradient = _at_least_float32(gradient.to(device))
        return cls(task, parameters, gradient, update.samples, labels, statistics)

    @property
    def victims(self) -> int:
        """The number of victims."""
        return len(self.gradient)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return running mean and variance `[2, channels]` of every batch norm that has updated them.

    Statistics that were never updated are a mean of 0 and a variance of 1, which depend on no data.

    Args:
        model: Any module.

    Returns:
        The statistics by module name.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> list(running_statistics(model))
    []
    >>> model(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 4, 6, 6])
    >>> list(running_statistics(model))
    ['1']
    """
    return {
        name: torch.stack([module.running_mean, module.running_var])
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
        and _are_updated(module, module.running_mean, module.running_var)
    }


def _are_updated(module: _BatchNorm, mean: Tensor, variance: Tensor) -> bool:
    """Whether the statistics differ from those of a new module; converted weights may lack the counter."""
    return bool(module.num_batches_tracked) or bool(mean.any()) or bool((variance != 1).any())


def check_same_victims(observations: Sequence[Observation]) -> None:
    """Raise unless there are observations and all of them can be of the same victims."""
    if not observations:
        raise DataError(
            "observations: expected at least one", field="observations", value=0, expected="at least one"
        )
    first = observations[0]
    for other in observations[1:]:
        if other.task is not first.task or other.gradient.shape != first.gradient.shape:
            raise _differ("expected the same task and the same victims in all of them")
        if other.samples != first.samples:
            raise _differ(f"batches of {first.samples} and of {other.samples} samples, expected one size")
        if (first.labels is None) != (other.labels is None):
            raise _differ("some contain labels and some don't, expected all or none")
        if first.labels is None or other.labels is None:
            continue
        if not torch.equal(first.labels.cpu(), other.labels.cpu()):
            raise _differ("the labels differ, expected the same victims in all of them")


def _differ(problem: str) -> DataError:
    return DataError(f"observations: {problem}", field="observations", expected="uploads of the same victims")


def _wrong(field: str, shown: object, expected: str) -> DataError:
    return DataError(f"{field} = {shown}: expected {expected}", field=field, value=shown, expected=expected)


def _at_least_float32(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t


def _check_update(task: Task, update: Update) -> None:
    missing = [name for name in task.names if name not in update.tensors]
    extra = [name for name in update.names if name not in task.shapes]
    for names, problem in ((missing, "missing"), (extra, "unexpected")):
        if names:
            raise DataError(
                f"update: {problem} {', '.join(names[:3])}: it was made with another model",
                field="update",
                value=names[:3],
                expected="the parameters of the task's model",
            )
    for name, shape in update.shapes.items():
        if shape != task.shapes[name]:
            raise DataError(
                f"update: {name} has shape {list(shape)}, expected {list(task.shapes[name])}",
                field=f"update: {name}",
                value=list(shape),
                expected=str(list(task.shapes[name])),
            )


def _check_parameters(task: Task, parameters: object) -> None:
    if not isinstance(parameters, Mapping):
        raise _wrong("parameters", type(parameters).__name__, "a mapping by name")
    missing = [name for name in task.names if name not in parameters]
    extra = [str(name) for name in parameters if name not in task.shapes]
    for names, problem in ((missing, "missing"), (extra, "unexpected")):
        if names:
            raise DataError(
                f"parameters: {problem} {', '.join(names[:3])}, expected those of the task's model",
                field="parameters",
                value=names[:3],
                expected="the parameters of the task's model",
            )
    for name, shape in task.shapes.items():
        value = parameters[name]
        if not isinstance(value, Tensor) or value.shape != shape:
            actual = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise DataError(
                f"parameters: {name} has {actual}, expected {list(shape)}",
                field=f"parameters: {name}",
                value=actual,
                expected=str(list(shape)),
            )
    # Gradients come in this order and are compared with an upload in the task's order.
    if tuple(parameters) != task.names:
        raise DataError(
            "parameters: expected them in the order of task.names",
            field="parameters",
            value=tuple(parameters)[:3],
            expected="the order of task.names",
        )


def _check_gradient(task: Task, gradient: object) -> None:
    if not isinstance(gradient, Tensor):
        raise _wrong("gradient", type(gradient).__name__, f"a tensor [V, {task.size}]")
    if gradient.dtype not in FLOATS:
        raise _wrong("gradient", gradient.dtype, "floats of 16, 32 or 64 bits")
    if gradient.ndim != 2 or gradient.shape[1] != task.size or not len(gradient):
        expected = f"shape [V, {task.size}], V ≥ 1, a value for every parameter"
        raise _wrong("gradient", list(gradient.shape), expected)
    # The maximum norm is not finite if any value is not: one pass without a copy, one GPU synchronisation.
    if not bool(torch.linalg.vector_norm(gradient.detach(), math.inf).isfinite()):
        raise DataError(
            "gradient: contains NaN or infinity", field="gradient", value=gradient, expected="finite values"
        )


def _check_labels(task: Task, labels: object, shape: tuple[int, int]) -> None:
    if not isinstance(labels, Tensor) or labels.dtype != torch.long or labels.shape != shape:
        expected = f"torch.int64 of shape {list(shape)}, a label for every sample"
        actual = labels if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(f"labels: expected {expected}", field="labels", value=actual, expected=expected)
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or high >= task.classes:
        raise _wrong("labels", low if low < 0 else high, f"values in [0, {task.classes - 1}]")
