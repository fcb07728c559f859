"""Loss threshold: members have a lower loss under the model that was trained on them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed
from refiner.core.task import Task
from refiner.inference.candidate_gradients import choose_public, relative_to_class
from refiner.inference.client_models import answers, client_models, sent_parameters
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts

REFERENCES = ("nothing", "sent", "public")


@dataclass(frozen=True)
class LossThreshold(MembershipAttack):
    """Scores a candidate by its loss under the client's model after training.

    The client's model is the one that it was sent less the learning rate × its upload. Some samples are
    harder than others under every model: the loss counts relative to the model that was sent (Watson et al.,
    ICLR 2022), and that relative to public images of the same class. Of several rounds the mean counts.

    Raises:
        SettingError: A setting is out of its range.
    """

    name: ClassVar[str] = "loss"
    reference: ClassVar[str] = (
        "Yeom, Giacomelli, Fredrikson, Jha: Privacy risk in machine learning: analyzing the connection to "
        "overfitting. CSF 2018"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public"})

    relative_to: str = "public"
    """What the loss is compared with: "nothing", the model that was sent ("sent"), or in addition the
    same difference for public images of the class ("public")."""
    images: int = 300
    """The most public images to compare with."""

    def __post_init__(self) -> None:
        checks.choice("relative_to", self.relative_to, REFERENCES)
        checks.integer("images", self.images, 2)

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Public images only if losses are compared with theirs."""
        return self.needs if self.relative_to == "public" else frozenset()

    def run(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator | None,
        facts: RunFacts,
    ) -> Tensor:
        """Return the mean over rounds of how far the loss is below what it is compared with."""
        rounds = []
        for observation in observations:
            own = self._decrease(observation, *candidates, facts.lr)
            if self.relative_to == "public":
                assert simulator is not None
                seed = derive_seed(facts.seed, self.name)
                images, labels = choose_public(simulator, self.images, candidates.y, seed)
                shape = (observation.victims, *images.shape)
                expanded = labels.expand(observation.victims, -1)
                others = self._decrease(observation, images.expand(shape), expanded, facts.lr)
                own = relative_to_class(own, candidates.y, others, labels)
            rounds.append(own)
        return torch.stack(rounds).mean(0)

    def _decrease(self, observation: Observation, x: Tensor, y: Tensor, lr: float) -> Tensor:
        """How far the loss is below that of the model sent, or below zero, `[V, K]`."""
        after = answers(observation.task, client_models(observation, lr), x, y).loss
        if self.relative_to == "nothing":
            return -after
        before = sent_parameters(observation).expand(observation.victims, -1)
        return answers(observation.task, before, x, y).loss - after
