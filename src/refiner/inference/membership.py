"""The base class of membership attacks: was a candidate among the data that an upload was computed from?"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator, ThreatModel
from refiner.attacks.observation import check_same_victims
from refiner.core.task import Task
from refiner.errors import DataError


class Candidates(NamedTuple):
    """Labelled samples of which an attacker wants to know whether a client has them."""

    x: Tensor
    """Inputs `[V, K, *input]`, K for each of V clients."""
    y: Tensor
    """Labels `[V, K]`."""


class RunFacts(NamedTuple):
    """What every membership attack knows of a run besides uploads and candidates."""

    seed: int
    """Seed of the attacker's draws."""
    lr: float
    """Learning rate of the clients: their models after training are the one sent less lr × upload."""
    steps: int = 1
    """Local steps whose gradients an upload adds up."""


@dataclass(frozen=True)
class MembershipAttack(ABC):
    """Scores candidates by how much the uploads of a client look as if it had trained on them.

    A new one is a frozen dataclass of its settings that sets `name`, `reference` (authors, title, venue,
    year) and, if it uses more than uploads, models and candidates, `needs`; and overrides `run`. Candidates
    come with their labels: whoever has a sample to ask about has its label too.
    """

    name: ClassVar[str]
    reference: ClassVar[str] = ""
    needs: ClassVar[frozenset[Capability]] = frozenset()

    def score(
        self,
        observations: Observation | Sequence[Observation],
        candidates: Candidates,
        *,
        threat: ThreatModel | None = None,
        simulator: Simulator | None = None,
        seed: int = 0,
        lr: float = 0.01,
        steps: int = 1,
    ) -> Tensor:
        """Return a score for each candidate of each client, higher for what looks like a member.

        Args:
            observations: One upload of each of V clients, or those of several rounds.
            candidates: K samples for each client.
            threat: What the attacker may use besides uploads, models and candidates.
            simulator: Public images and the defence, for an attack that needs them.
            seed: Seed of the attacker's draws.
            lr: Learning rate of the clients' local steps.
            steps: Local steps of a client, those of all its epochs.

        Returns:
            Scores `[V, K]`, comparable between clients.

        Raises:
            ThreatModelError: The attack needs what `threat` does not grant.
            DataError: Observations, candidates or public images don't fit, or there are none.

        >>> from refiner import LeNet, NoDefense
        >>> from refiner.inference import Alignment
        >>> x, y = torch.rand(2, 4, 3, 32, 32), torch.arange(8).view(2, 4)
        >>> task = Task(LeNet(), example=x[0])
        >>> observation = Observation.of(task, NoDefense().protect(task, x[:, :2], y[:, :2]))
        >>> Alignment(relative=False).score(observation, Candidates(x, y)).shape
        torch.Size([2, 4])
        """
        uploads = [observations] if isinstance(observations, Observation) else list(observations)
        check_same_victims(uploads)
        facts = RunFacts(
            checks.integer("seed", seed, 0),
            checks.number("lr", lr, 0, 1e3, above=True),
            checks.integer("steps", steps, 1),
        )
        task, granted = uploads[0].task, threat or ThreatModel()
        needs = self.needs_for(task)
        granted.check(needs, self.name)
        _check_candidates(task, candidates, uploads[0].victims)
        if not needs.isdisjoint({"public", "defense"}):
            if simulator is None:
                expected = f"public images and the defence, which {self.name} needs"
                raise DataError(field="public", value=None, expected=expected)
            simulator.check(task, attack=self.name)
            if "defense" not in needs:
                simulator = Simulator(simulator.images, simulator.labels, _refuse)
        scores: object = self.run(uploads, candidates, simulator, facts)
        if not isinstance(scores, Tensor) or scores.shape != candidates.y.shape:
            problem = f"its run returned no scores {list(candidates.y.shape)}"
            raise DataError(field="attack", value=self.name, problem=problem)
        # What is not finite says nothing: it counts as the lowest score.
        return torch.nan_to_num(scores.detach().double().cpu(), -torch.inf, None, None)

    def settings(self) -> dict[str, object]:
        """Return the settings by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Return the capabilities that the attack needs for `task`; the default is `needs`.

        Args:
            task: The model and its loss.
        """
        return self.needs

    @abstractmethod
    def run(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator | None,
        facts: RunFacts,
    ) -> Tensor:
        """Score the candidates; to be overridden, and called by `score` only.

        Args:
            observations: One or more uploads of the same clients, already checked.
            candidates: K samples for each client, already checked.
            simulator: Not None if the attack needs "public" or "defense".
            facts: Seed and learning rate.

        Returns:
            Scores `[V, K]`.
        """


def _refuse(x: Tensor, y: Tensor, seed: int) -> NoReturn:
    raise AssertionError("the attack does not declare that it needs the defence")


def _check_candidates(task: Task, candidates: Candidates, victims: int) -> None:
    x, y = candidates
    if x.ndim < 3 or tuple(x.shape[2:]) != tuple(task.input_shape) or len(x) != victims or not x.shape[1]:
        expected = f"one or more for each client, [{victims}, K, {', '.join(map(str, task.input_shape))}]"
        raise DataError(field="candidates", value=list(x.shape), expected=expected)
    if y.dtype != torch.long or y.shape != x.shape[:2]:
        raise DataError(
            field="candidates", value=y, expected=f"a label of each, torch.int64 {list(x.shape[:2])}"
        )
    low, high = (int(value) for value in y.aminmax())
    if low < 0 or high >= task.classes:
        expected = f"labels in [0, {task.classes - 1}], the classes of the model"
        raise DataError(field="candidates", value=low if low < 0 else high, expected=expected)
