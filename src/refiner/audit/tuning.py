"""Other images, on which the attacker is tuned for a defence before the victims are attacked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from refiner import checks
from refiner.attacks import Attack, tunable
from refiner.audit.public_images import without
from refiner.audit.shapes import shaped
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.metrics.pairs import check_images

TOTAL_VARIATION = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
LR = (0.01, 0.03, 0.1)


@dataclass(frozen=True, eq=False)
class Tuning:
    """Images that are no victims, and what is tried on them; the attack's own values are tried too.

    An attacker can do the same who runs the defence on images of its own.

    >>> import torch
    >>> from refiner.attacks import InvertingGradients
    >>> tuning = Tuning(torch.rand(2, 3, 32, 32), torch.tensor([3, 5]), total_variation=[0.1], lr=[])
    >>> tuning.grid(InvertingGradients())
    ({'total_variation': 0.0001, 'lr': 0.1}, {'total_variation': 0.1, 'lr': 0.1})
    """

    x: Tensor
    """`[V, B, C, H, W]` with the victims' B, or `[N, C, H, W]`"""
    y: Tensor
    total_variation: Sequence[float] = TOTAL_VARIATION
    lr: Sequence[float] = LR

    def __post_init__(self) -> None:
        for weight in self.total_variation:
            checks.number("total_variation", weight, 0)
        for rate in self.lr:
            checks.number("lr", rate, 0, above=True)

    def values(self, attack: Attack) -> dict[str, list[float]]:
        """What is tried of each setting that can be tuned."""
        tried = {name: (*getattr(self, name), getattr(attack, name)) for name in tunable(attack)}
        return {name: sorted({float(value) for value in values}) for name, values in tried.items()}

    def grid(self, attack: Attack) -> tuple[dict[str, float], ...]:
        """Every combination of them."""
        values = self.values(attack)
        return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))

    def checked(self, task: Task, victims: Tensor, batch: int, attack: Attack) -> "Tuning":
        """With batches; whatever does not fit the victims `[N, C, H, W]` is refused."""
        if not tunable(attack):
            raise DataError(f"tune: {attack.name} has neither total_variation nor lr to be tuned")
        x, y = shaped(task, self.x, self.y, "tune.")
        if x.shape[1] != batch:
            raise DataError(f"tune.x: batches of {x.shape[1]}, expected {batch} as the victims have")
        flat = check_images("tune.x", x.flatten(0, 1).to(victims))
        if len(without(flat, victims)) < len(flat):
            raise DataError("tune: holds a victim, expected other images")
        return replace(self, x=x, y=y)
