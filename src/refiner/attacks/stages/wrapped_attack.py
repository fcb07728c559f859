"""The base class of attacks that prepare or restore what another attack does."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from torch import Tensor, nn

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.matching.inverting import InvertingGradients
from refiner.attacks.simulation import KnownDefense
from refiner.attacks.threat_model import Capability
from refiner.core.task import Task


@dataclass(frozen=True)
class WrappedAttack(Attack):
    """An attack with another one inside; on the command line `ATTACK+STAGE`.

    A subclass sets `stage`, its name in such a chain, and implements `run` and `stage_uploads`.
    """

    stage: ClassVar[str]
    reconstructs_public_images: ClassVar[bool] = False
    """Whether the other attack is also run on the uploads that this stage simulates."""

    attack: Attack = field(default_factory=InvertingGradients)
    """The other attack."""

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise checks.wrong("attack", self.attack, f"an Attack; as text, ATTACK+{self.stage}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The names of the other attack and of this stage, as `make_attack` reads them."""
        return f"{self.attack.name}+{self.stage}"

    def settings(self) -> dict[str, object]:
        """Return the settings of both, as `ATTACK.SETTING` and `STAGE.SETTING`."""
        own = {name: value for name, value in super().settings().items() if name != "attack"}
        inner = {f"{self.attack.name}.{name}": value for name, value in self.attack.settings().items()}
        return inner | {f"{self.stage}.{name}": value for name, value in own.items()}

    def check(self, task: Task) -> None:
        """Raise if the other attack can't be run on `task`.

        Args:
            task: The model and its loss.
        """
        self.attack.check(task)

    def check_samples(self, samples: int) -> None:
        """Raise if the other attack can't reconstruct so many samples.

        Args:
            samples: The samples of one observation.
        """
        self.attack.check_samples(samples)

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Return what both need."""
        return self.attack.needs_for(task) | self.needs

    def least_public_images(self, samples: int) -> int:
        """Return the fewest public images that both can learn from."""
        return max(super().least_public_images(samples), self.attack.least_public_images(samples))

    @abstractmethod
    def stage_uploads(self, public: int, samples: int) -> int:
        """Return how many uploads this stage simulates.

        Args:
            public: The number of public images.
            samples: The samples of one observation.
        """

    def simulated_uploads(self, public: int, samples: int) -> int:
        """Return the uploads that this stage and, if it learns, the other attack simulate."""
        learns = not self.attack.needs.isdisjoint({"public", "defense"})
        inner = self.attack.simulated_uploads(public, samples) if learns else 0
        return self.stage_uploads(public, samples) + inner

    def check_labels(self, labels: Tensor) -> None:
        """Raise if the other attack can't read batches with such labels."""
        self.attack.check_labels(labels)

    def prepared(self, public: Tensor, defense: KnownDefense) -> Self:
        """Return the same with the other attack's settings made to fit the images and the defence."""
        return replace(self, attack=self.attack.prepared(public, defense))

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the model that the server of the other attack sends."""
        return self.attack.changed_task(task, samples)

    def send_to(self, task: Task, client: int, clients: int) -> None:
        """Set the model to what one client of a sum receives from the other attack's server."""
        self.attack.send_to(task, client, clients)

    @property
    def rounds(self) -> int:
        """The uploads of each client that the other attack reads."""
        return self.attack.rounds

    def send_in_round(self, task: Task, round: int) -> None:
        """Set the model to what all clients receive in a round from the other attack's server."""
        self.attack.send_in_round(task, round)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the networks of the other attack."""
        return self.attack.networks(task)
