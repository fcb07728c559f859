"""Alignment of a candidate's own gradient with the upload."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed
from refiner.core.task import Task
from refiner.inference.candidate_gradients import (
    candidate_products,
    choose_public,
    public_products,
    relative_to_class,
)
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts


@dataclass(frozen=True)
class Alignment(MembershipAttack):
    """Scores a candidate by the cosine of its own gradient with the upload.

    An upload is the mean of its samples' gradients, and so is closer to those of members. Relative to public
    images of the same class, the cosine no longer tells which classes the batch has, which any image of these
    classes would share. Of several rounds the mean counts.

    Raises:
        SettingError: A setting is out of its range.
    """

    name: ClassVar[str] = "alignment"
    reference: ClassVar[str] = (
        "Li, Li, Ribeiro: Effective passive membership inference attacks in federated learning against "
        "overparameterized models. ICLR 2023"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public"})

    relative: bool = True
    """Whether cosines are compared with those of public images of the candidate's class, in standard
    deviations. Otherwise they count as they are, and no public images are needed."""
    images: int = 1000
    """The most public images to compare with."""

    def __post_init__(self) -> None:
        checks.flag("relative", self.relative)
        checks.integer("images", self.images, 2)

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Public images only if cosines are relative."""
        return self.needs if self.relative else frozenset()

    def run(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator | None,
        facts: RunFacts,
    ) -> Tensor:
        """Return the mean cosine over rounds."""
        rounds = []
        for observation in observations:
            own = candidate_products(observation, candidates).cosines
            if self.relative:
                assert simulator is not None
                seed = derive_seed(facts.seed, self.name)
                images, labels = choose_public(simulator, self.images, candidates.y, seed)
                others = public_products(observation, images, labels).cosines
                own = relative_to_class(own, candidates.y, others, labels)
            rounds.append(own)
        return torch.stack(rounds).mean(0)
