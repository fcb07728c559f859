"""What the modules inside of a model get as their inputs, and what they return instead of their outputs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from refiner.core.task import Parameters, Task
from refiner.errors import DataError


def input_statistics(task: Task, parameters: Parameters, x: Tensor, modules: Sequence[str]) -> list[Tensor]:
    """Mean and variance of the inputs of some modules, per channel.

    Args:
        task: The model.
        parameters: One model's parameters by name.
        x: Inputs `[B, *input]` of the model.
        modules: The modules' names.

    Returns:
        `[2, channels]` for each module.
    """
    statistics: dict[str, Tensor] = {}

    def record(name: str, module_input: Tensor) -> None:
        var, mean = torch.var_mean(module_input.transpose(0, 1).flatten(1), dim=1, correction=0)
        statistics[name] = torch.stack([mean, var])

    handles = [
        task.module(name).register_forward_pre_hook(lambda _module, args, name=name: record(name, args[0]))
        for name in modules
    ]
    try:
        task.scores(parameters, x)
    finally:
        for handle in handles:
            handle.remove()
    return [statistics[name] for name in modules]


@contextmanager
def override_output(
    task: Task, module: str, function: Callable[[Any, Tensor], Tensor | None]
) -> Iterator[None]:
    """Inside the block `function(module, input)` replaces a module's output, unless it returns None.

    Args:
        task: The model.
        module: The module's name.
        function: Called with the module and its input.
    """
    handle = task.module(module).register_forward_hook(lambda owner, args, _output: function(owner, args[0]))
    try:
        yield
    finally:
        handle.remove()


def module_input(task: Task, parameters: Parameters, x: Tensor, module: str) -> Tensor:
    """The input that a module gets in a forward pass.

    Args:
        task: The model.
        parameters: One model's parameters by name.
        x: Inputs `[B, *input]` of the model.
        module: The module's name.

    Returns:
        The module's input, one row per sample.

    Raises:
        DataError: The module runs more or less than once, or not on one row per sample.
    """
    calls: list[Tensor] = []
    with override_output(task, module, lambda _owner, given: calls.append(given)):
        task.scores(parameters, x)
    if len(calls) != 1 or len(calls[0]) != len(x):
        expected = "a module that runs once in a pass, on one row per sample"
        raise DataError(f"{module}: expected {expected}", field="module", value=module, expected=expected)
    return calls[0]


def first_module_input(task: Task, parameters: Parameters, x: Tensor, module: str) -> Tensor:
    """The input that a module gets when it first runs in a forward pass, which ends there.

    Args:
        task: The model.
        parameters: One model's parameters by name.
        x: Inputs `[B, *input]` of the model.
        module: The name of a module that runs.

    Returns:
        The module's input, equal to `module_input` for a module that runs once, at a lower cost.

    Raises:
        DataError: The module does not run.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    >>> first_module_input(task, task.parameters(), torch.rand(2, 3, 32, 32), "body.2").shape
    torch.Size([2, 12, 16, 16])
    """

    def end(_module: Any, args: tuple[Any, ...]) -> None:
        raise _Reached(args[0])

    handle = task.module(module).register_forward_pre_hook(end)
    try:
        task.scores(parameters, x)
    except _Reached as reached:
        return reached.given
    finally:
        handle.remove()
    expected = "a module that runs in a pass"
    raise DataError(f"{module}: expected {expected}", field="module", value=module, expected=expected)


def mixes_samples(task: Task) -> bool:
    """Whether what a sample gets depends on the others of its batch, as with batch norm."""
    return any(isinstance(module, _BatchNorm) for module in task.modules())


class _Reached(Exception):
    """Ends a forward pass at a module, whose input it carries."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given
