"""Tuning an attack for a defence, on images that are not victims, before the victims are attacked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from refiner import checks
from refiner.attacks import Attack, tunable
from refiner.audit.protocol import Protocol
from refiner.audit.public_images import without_victims
from refiner.audit.victim_shapes import with_batch_axis
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.metrics.image_checks import check_images

TOTAL_VARIATION_WEIGHTS = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
LEARNING_RATES = (0.003, 0.01, 0.03, 0.1)
ITERATION_SHARES = (0.03, 0.1, 0.3)


@dataclass(frozen=True, eq=False)
class Tuning:
    """Images to tune an attack on, and the values to try.

    A real attacker can do the same with images of its own, since it can run the defence on them. For every
    defence each combination of the values is tried on these images, and the one with the highest mean PSNR
    is used against the victims. Where none beats the blind guess, PSNR favours attacks that return one
    colour: then the one is used by which the originals rank best among all candidates. The attack's own
    values are always tried as well.

    Args:
        x: Images that are not victims: `[V, B, C, H, W]` with the victims' batch size B, or
            `[N, C, H, W]` for batches of one.
        y: Their labels, `[V, B]` or `[N]`.
        total_variation: Weights of the total-variation prior to try, each ≥ 0.
        lr: Learning rates to try, each > 0.
        iterations: Shares of the attack's iterations to try, each in (0, 1]: behind a defence a shorter run
            can be the better one, since later steps fit the noise. A shorter run is a run of its own,
            because the learning rate decays with the share of the iterations done.

    Raises:
        SettingError: if a value is out of range.

    >>> import torch
    >>> from refiner.attacks import InvertingGradients
    >>> tuning = Tuning(torch.rand(2, 3, 32, 32), torch.tensor([3, 5]), total_variation=[], lr=[])
    >>> for point in tuning.grid(InvertingGradients()):
    ...     print(point)
    {'iterations': 120, 'total_variation': 0.0001, 'lr': 0.1}
    {'iterations': 400, 'total_variation': 0.0001, 'lr': 0.1}
    {'iterations': 1200, 'total_variation': 0.0001, 'lr': 0.1}
    {'iterations': 4000, 'total_variation': 0.0001, 'lr': 0.1}
    """

    x: Tensor
    y: Tensor
    total_variation: Sequence[float] = TOTAL_VARIATION_WEIGHTS
    lr: Sequence[float] = LEARNING_RATES
    iterations: Sequence[float] = ITERATION_SHARES

    def __post_init__(self) -> None:
        for weight in self.total_variation:
            checks.number("total_variation", weight, 0)
        for rate in self.lr:
            checks.number("lr", rate, 0, above=True)
        for share in self.iterations:
            checks.number("iterations", share, 0, 1, above=True)

    def values(self, attack: Attack) -> dict[str, list[float]]:
        """Return the values to try of every setting that can be tuned.

        Args:
            attack: The attack to tune; its own values are among those to try.

        Returns:
            The values in ascending order, by setting.
        """
        own = getattr(attack, "iterations", 0)
        counts: list[float] = sorted({max(1, round(share * own)) for share in (*self.iterations, 1)})
        candidates = {name: (*getattr(self, name), getattr(attack, name)) for name in tunable(attack)}
        others = {name: sorted({float(value) for value in values}) for name, values in candidates.items()}
        return {**({"iterations": counts} if own else {}), **others}

    def grid(self, attack: Attack) -> tuple[dict[str, float], ...]:
        """Return every combination of `values`.

        Args:
            attack: The attack to tune.

        Returns:
            The settings of each trial.
        """
        values = self.values(attack)
        return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))

    def checked(
        self, task: Task, victims: Tensor, batch: int, attack: Attack, protocol: Protocol
    ) -> "Tuning":
        """Return a copy with a batch axis, checked for these victims.

        Args:
            task: The model and its loss.
            victims: The victims' images `[N, C, H, W]`.
            batch: The victims' batch size.
            attack: The attack to tune.
            protocol: Local steps, and clients of a sum.

        Returns:
            The copy.

        Raises:
            DataError: if the attack can't be tuned, the images don't fit, or one of them is a victim.
        """
        if not tunable(attack):
            problem = (
                "it has no setting that can be tuned; only attacks that match gradients have, without +STAGE"
            )
            raise DataError(field="tune", value=attack.name, problem=problem)
        x, y = with_batch_axis(task, self.x, self.y, "tune.")
        if x.shape[1] != batch:
            raise DataError(field="tune.x", value=x, expected=f"batches of {batch}, as the victims have")
        protocol.observations(*y.shape)
        flat = check_images("tune.x", x.flatten(0, 1).to(victims))
        if len(without_victims(flat, victims)) < len(flat):
            raise DataError("tune: contains a victim, expected other images", field="tune")
        return replace(self, x=x, y=y)
