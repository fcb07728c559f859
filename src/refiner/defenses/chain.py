"""Several defences as one: the first makes the upload, each next one changes it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from refiner import checks
from refiner.core.gradients import Gradients
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.base import Batch, Defense, GradientTransform
from refiner.defenses.wire_size import packed_bytes
from refiner.errors import ProtectionError, SettingError


@dataclass(frozen=True)
class Chain(Defense):
    """Defences in their order: at most one that needs the data, and that one first.

    >>> from refiner.defenses import NoDefense, Refiner
    >>> Chain((Refiner(), NoDefense())).name
    'refiner+none'
    >>> Chain((NoDefense(), Refiner()))
    Traceback (most recent call last):
    refiner.errors.SettingError: parts: refiner in place 2 needs the data, and can only stand first
    """

    parts: Sequence[Defense]
    """Chains among them are taken apart."""

    def __post_init__(self) -> None:
        if not isinstance(self.parts, list | tuple) or not self.parts:
            raise checks.wrong("parts", self.parts, "one defence or more")
        flat: list[Defense] = []
        for place, part in enumerate(self.parts, start=1):
            if not isinstance(part, Defense):
                raise SettingError(f"parts: {type(part).__name__} in place {place}, expected a Defense")
            flat += part.parts if isinstance(part, Chain) else [part]
        for place, part in enumerate(flat[1:], start=2):
            if part.needs == "data" or not isinstance(part, GradientTransform):
                raise SettingError(
                    f"parts: {part.name} in place {place} needs the data, and can only stand first"
                )
        object.__setattr__(self, "parts", tuple(flat))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The parts' names, joined: as text that `make_defense` takes."""
        return "+".join(part.name for part in self.parts)

    @property
    def needs(self) -> Literal["data", "gradient"]:  # type: ignore[override]
        """What the first part needs."""
        return self.parts[0].needs

    @property
    def cost(self) -> str:  # type: ignore[override]
        """That of each part."""
        return "; then ".join(f"{part.name}: {part.cost or 'not told'}" for part in self.parts)

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """Whether the first part keeps a key; later parts then draw from the operating system."""
        return self.parts[0].keyed

    @property
    def takes_models(self) -> bool:
        """Whether the first part does; the others see gradients alone."""
        return self.parts[0].takes_models

    def for_training(self, samples: int, seed: int | None) -> Self:
        """Every part for that training."""
        return replace(self, parts=tuple(part.for_training(samples, seed) for part in self.parts))

    def state(self) -> dict[str, Tensor]:
        """What the first part remembers; the others see gradients alone."""
        return self.parts[0].state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Remember what `state` held."""
        self.parts[0].restore(state)

    @property
    def proves(self) -> bool:
        """What the first part does: the others see only what it made."""
        return self.parts[0].proves

    def guarantee(self) -> str:
        """That of each part, on its own terms.

        What is proven of the first part holds for the upload: later parts see only what it made. What is
        proven of a later part is proven for the gradient that it is given, whatever made it.
        """
        first, *rest = self.parts
        told = [f"{part.name}, for what it is given: {part.guarantee()}" for part in rest]
        return "; then ".join([f"{first.name}: {first.guarantee()}", *told])

    def settings(self) -> dict[str, object]:
        """Those of every part, each as `PART.SETTING`; a name that comes again is numbered."""
        told: dict[str, object] = {}
        for place, part in enumerate(self.parts, start=1):
            count = sum(other.name == part.name for other in self.parts[:place])
            title = part.name if count == 1 else f"{part.name} {count}"
            told |= {f"{title}.{key}": value for key, value in part.settings().items()}
        return told

    def wire_bytes(self, shapes: Mapping[str, torch.Size]) -> int:
        """With the zeros and levels of every part that later parts leave as they are."""
        return packed_bytes(self.parts, shapes)

    def _noise(self) -> NoiseSource:
        return self.parts[0]._noise()

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        upload = self.parts[0]._upload(task, batch)
        for place, part in enumerate(self.parts[1:], start=1):
            assert isinstance(part, GradientTransform)
            # A later part may make numbers of what are none, and so hide that something went wrong.
            if not bool(get_total_norm(list(upload.values()), math.inf).isfinite()):
                raise ProtectionError(
                    f"{self.parts[place - 1].name} made values that are not finite; nothing leaves"
                )
            # The first part may keep its source for a whole training, so that without a seed no other part
            # can be given a child of it: noise that is the same in every round is found by averaging.
            noise = batch.noise.child(place) if batch.noise.seeded else part._noise()
            upload = part.transform(upload, noise, batch.x.shape[1])
        return upload
