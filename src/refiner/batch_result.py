"""`BatchResult`: what `backward` returns, the update and the loss and scores that stay on the client."""

from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor, nn

from refiner.core.task import Task
from refiner.core.update import Update
from refiner.errors import ProtectionError


class BatchResult:
    """The result of `backward` for one batch.

    Only `update` may leave the client. `loss` and `scores` are those of the **real data**, for the client's
    own log: they are no part of the update, and no defence protects them.

    Most defences compute the scores on the way, and reading them costs nothing. Where the real data take no
    part in the upload, as with `Refiner(search="never")`, or only in parts, they are computed by one forward
    pass when they are first read; this must be before `optimizer.step()`.

    Attributes:
        update: The protected gradient, which was added to each `.grad`.

    >>> from refiner import LeNet, Refiner, backward
    >>> model, x, y = LeNet(), torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> result = backward(model, nn.functional.cross_entropy, x, y, Refiner(search="never"))
    >>> result
    BatchResult(Update(refiner, victims=1, samples=2, parameters=8))
    >>> torch.equal(result.scores.argmax(1), model(x).argmax(1))
    True
    """

    def __init__(self, update: Update, task: Task, x: Tensor, y: Tensor, scores: Tensor | None) -> None:
        self.update = update
        self._task, self._x, self._y = task, x.detach(), y
        self._computed = None if scores is None else scores.detach()
        self._version = _version(task.model)

    @cached_property
    def scores(self) -> Tensor:
        """The model's scores of the real batch, `[B, classes]`, detached: only for the client's own log.

        Raises:
            ProtectionError: The defence has not computed them, and the model has changed since `backward`.
        """
        if self._computed is not None:
            return self._computed
        if _version(self._task.model) != self._version:
            raise ProtectionError(
                f"scores: {self.update.defense} needs none, and the model has changed since backward; "
                "read loss or scores before optimizer.step()"
            )
        with torch.no_grad():
            return self._task.scores(self._task.parameters(), self._x)

    @cached_property
    def loss(self) -> Tensor:
        """The loss of the real batch, a detached number: only for the client's own log.

        Raises:
            ProtectionError: As `scores`.
        """
        with torch.no_grad():
            return self._task.loss_of_scores(self.scores, self._y)

    def __repr__(self) -> str:
        return f"BatchResult({self.update!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BatchResult refers to the client's data and can't be pickled; send its update")


def _version(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Changes with every change of a parameter's values."""
    return tuple((parameter.data_ptr(), parameter._version) for parameter in model.parameters())
