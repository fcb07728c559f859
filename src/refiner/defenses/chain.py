"""`Chain`: several defences as one; the first computes an upload and each next one transforms it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self

from torch import nn
from torch.nn.utils import get_total_norm

from refiner import checks
from refiner.core.finite import make_finite_
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.result import Upload
from refiner.defenses.state import DefenseState
from refiner.defenses.wire_format import WireFormat
from refiner.errors import ProtectionError, SettingError


class Chain(Defense):
    """Defences applied in order. One that needs the data can only be the first.

    Args:
        parts: One defence or more, as a list or tuple; the parts of a chain among them are inserted.

    Raises:
        SettingError: If `parts` is empty, contains something else than defences, or has one that needs the
            data in second place or later.

    >>> from refiner.defenses import NoDefense, Refiner
    >>> Chain((Refiner(), NoDefense())).name
    'refiner+none'
    >>> Chain((NoDefense(), Refiner()))
    Traceback (most recent call last):
    refiner.errors.SettingError: parts: refiner in position 2 needs the data, and can only be the first
    """

    def __init__(self, parts: Sequence[Defense]) -> None:
        if not isinstance(parts, list | tuple) or not parts:
            raise checks.wrong("parts", parts, "one defence or more")
        flat: list[Defense] = []
        for position, part in enumerate(parts, start=1):
            if not isinstance(part, Defense):
                raise SettingError(
                    f"parts: {type(part).__name__} in position {position}, expected a Defense",
                    field="parts",
                    expected="defences",
                )
            flat += part.parts if isinstance(part, Chain) else [part]
        for position, part in enumerate(flat[1:], start=2):
            if part.needs == "data" or not isinstance(part, GradientTransform):
                raise SettingError(
                    f"parts: {part.name} in position {position} needs the data, and can only be the first",
                    field="parts",
                )
        self._parts = tuple(flat)

    @property
    def parts(self) -> tuple[Defense, ...]:
        """The defences in order, none of them a chain."""
        return self._parts

    def __eq__(self, other: object) -> bool:
        return self.parts == other.parts if isinstance(other, Chain) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Chain(parts={self.parts!r})"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The parts' names joined by a plus, as `make_defense` reads them."""
        return "+".join(part.name for part in self.parts)

    @property
    def reference(self) -> str:  # type: ignore[override]
        """The papers of the parts."""
        return "; ".join(dict.fromkeys(part.reference for part in self.parts if part.reference))

    @property
    def needs(self) -> Literal["data", "gradient"]:  # type: ignore[override]
        """What the first part needs."""
        return self.parts[0].needs

    @property
    def cost(self) -> str:  # type: ignore[override]
        """The cost of each part."""
        return "; then ".join(f"{part.name}: {part.cost or 'not stated'}" for part in self.parts)

    @property
    def uses_secret_key(self) -> bool:  # type: ignore[override]
        """Whether the first part does; the other parts then draw from the operating system."""
        return self.parts[0].uses_secret_key

    @property
    def supports_models_per_victim(self) -> bool:
        """Whether the first part does; the others see gradients only."""
        return self.parts[0].supports_models_per_victim

    def with_seeded_key(self, seed: int) -> Self:
        """The same chain with every key derived from `seed`."""
        return type(self)([part.with_seeded_key(seed) for part in self.parts])

    def init_state(self, samples: int = 0) -> DefenseState:
        """The state of the first part; the others see gradients only."""
        return self.parts[0].init_state(samples)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The networks of all parts."""
        networks: dict[str, nn.Module] = {}
        for position, part in enumerate(self.parts, start=1):
            for name, network in part.networks(task).items():
                networks[name if name not in networks else f"{name} of part {position}"] = network
        return networks

    @property
    def noise_ratio_applies(self) -> bool:
        """Whether it applies to every part."""
        return all(part.noise_ratio_applies for part in self.parts)

    def reveals_more_in_batches(self, batch: int) -> bool:
        """Whether the uploads of the first part do."""
        return self.parts[0].reveals_more_in_batches(batch)

    @property
    def has_guarantee(self) -> bool:
        """Whether the first part has one: the others see only its result."""
        return self.parts[0].has_guarantee

    def guarantee(self) -> str:
        """The guarantee of each part.

        That of the first part holds for the upload, since later parts see only its result. That of a later
        part holds for the gradient that it receives, whatever produced it.
        """
        first, *rest = self.parts
        later = [f"{part.name}, for the gradient it receives: {part.guarantee()}" for part in rest]
        return "; then ".join([f"{first.name}: {first.guarantee()}", *later])

    def settings(self) -> dict[str, object]:
        """The settings of every part as `PART.SETTING`; a part's name that occurs again is numbered."""
        settings: dict[str, object] = {}
        for position, part in enumerate(self.parts, start=1):
            count = sum(other.name == part.name for other in self.parts[:position])
            prefix = part.name if count == 1 else f"{part.name} {count}"
            settings |= {f"{prefix}.{key}": value for key, value in part.settings().items()}
        return settings

    def wire_format(self, incoming: WireFormat) -> WireFormat:
        """The format after all parts: zeros and levels of a part that later parts preserve."""
        for part in self.parts:
            incoming = part.wire_format(incoming)
        return incoming

    def noise_source(self) -> NoiseSource:
        """The noise source of the first part."""
        return self.parts[0].noise_source()

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """The upload of the first part, transformed by the others; its robust data, if it crafts any."""
        upload = self.parts[0].compute_upload(task, batch)
        for index, part in enumerate(self.parts[1:], start=1):
            assert isinstance(part, GradientTransform)
            # A later part may turn NaN into numbers, and so hide that an earlier one failed.
            gradients = dict(upload.gradients)
            if batch.training:
                gradients = {name: make_finite_(value.clone()) for name, value in gradients.items()}
            elif not bool(get_total_norm(list(gradients.values()), math.inf).isfinite()):
                made_by = self.parts[index - 1].name
                raise ProtectionError(f"{made_by} made values that are not finite; no update was made")
            # The first part may keep its source for a whole training. Without a seed a later part therefore
            # gets no child of it: noise that is equal in every round can be averaged out.
            noise = batch.noise.child(index) if batch.noise.seeded else part.noise_source()
            upload = replace(upload, gradients=part.transform(gradients, noise, batch.x.shape[1]))
        return upload


def gradient_transforms(defense: Defense) -> tuple[GradientTransform, ...]:
    """Return the transforms that a defence applies to a gradient, in order; none if it needs the data.

    Args:
        defense: A defence, which may be a chain.

    >>> from refiner.defenses import make_defense
    >>> [part.name for part in gradient_transforms(make_defense("pruning+gq"))]
    ['pruning', 'gq']
    >>> gradient_transforms(make_defense("refiner+gq"))
    ()
    """
    if defense.needs == "data":
        return ()
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    return tuple(part for part in parts if isinstance(part, GradientTransform))
