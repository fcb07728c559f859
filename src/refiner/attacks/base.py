"""The base class of every attack."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from torch import Tensor, nn

from refiner import checks
from refiner.attacks.observation import Observation, check_same_victims
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import Progress, RunOptions, resume_path
from refiner.attacks.simulation import KnownDefense, Simulator
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.determinism import deterministic_algorithms
from refiner.core.task import Task
from refiner.errors import DataError, ThreatModelError


@dataclass(frozen=True)
class Attack(ABC):
    """Reconstructs clients' batches from their uploads.

    A new attack is a frozen dataclass of its settings that derives from this class and

    - sets the class attributes `name` (the name in tables and on the command line), `reference` (its paper:
      authors, title, venue, year) and, if it uses more than the upload and the model, `needs`;
    - overrides `run`, which does the work: `reconstruct` calls it with checked arguments;
    - sets `min_public_images` if it learns from simulated uploads: it needs "public" and "defense", and finds
      both in `options.simulator`; overrides `least_public_images` if the number depends on the batch;
    - overrides `changed_task` if the server sends a changed model, and then needs "changed_model"; and
      `rounds` and `send_in_round` if it sends several models and reads an upload for each;
    - sets `single_only` if it takes batches of one sample only;
    - overrides, where the defaults are wrong, `check` (tasks that the attack can't be run on), `needs_for`
      (capabilities that depend on the task) and `networks` (networks whose weights affect the result).

    An attack that minimises the distance between gradients derives from `MatchingAttack` instead, which
    implements `run`. A package makes its attack available by name with an entry point in the group
    `refiner.attacks`.
    """

    name: ClassVar[str]
    reference: ClassVar[str] = ""
    needs: ClassVar[frozenset[Capability]] = frozenset()
    min_public_images: ClassVar[int] = 1
    """The fewest public images that an attack which needs them can learn from."""
    single_only: ClassVar[str | None] = None
    """Why the attack takes batches of one sample only; None if it takes all."""

    def reconstruct(
        self,
        observations: Observation | Sequence[Observation],
        *,
        threat: ThreatModel | None = None,
        seed: int = 0,
        chunk: int | None = None,
        resume: str | os.PathLike[str] | None = None,
        on_progress: Progress = lambda done, total: None,
        deterministic: bool = False,
        simulator: Simulator | None = None,
    ) -> Reconstruction:
        """Reconstruct every victim's batch from one upload of it, or from several.

        Args:
            observations: One upload of each of V victims, or a sequence of uploads of the same victims.
            threat: What the attacker may use besides the upload and the model; nothing more if None.
            seed: Seed of the attacker's random draws.
            chunk: Victims attacked at a time; None takes as many as fit into memory. Changes results by
                rounding only.
            resume: A file for the state of the run. A call with the same arguments continues from it.
            on_progress: Called from time to time with the victim-iterations done and their total.
            deterministic: Whether a GPU also gives the same bits every time, at some cost in speed.
            simulator: Public images and the defence, for an attack that learns what uploads reveal.

        Returns:
            The reconstructed inputs and labels, with the value of the attack's objective for each victim.

        Raises:
            ThreatModelError: The attack needs, or the observation or the simulator contains, what `threat`
                does not grant.
            DataError: The observations are not of the same victims, their batches are too large for the
                attack, `resume` is the state of another run, or the simulator is missing or does not fit the
                task.

        >>> import torch
        >>> from refiner import LeNet, NoDefense
        >>> from refiner.attacks import InvertingGradients
        >>> x, y = torch.rand(3, 1, 3, 32, 32), torch.tensor([[7], [0], [4]])
        >>> task = Task(LeNet(), example=x[0])
        >>> observation = Observation.of(task, NoDefense().protect(task, x, y))
        >>> InvertingGradients(iterations=2).reconstruct(observation).x.shape
        torch.Size([3, 1, 3, 32, 32])
        """
        options = RunOptions(seed, chunk, resume_path(resume), on_progress, deterministic, simulator)
        uploads = [observations] if isinstance(observations, Observation) else observations
        if not isinstance(uploads, Sequence) or not all(isinstance(o, Observation) for o in uploads):
            raise DataError(
                f"observations = {type(observations).__name__}: expected an Observation or a list of them",
                field="observations",
                value=type(observations).__name__,
                expected="an Observation or a list of them",
            )
        if threat is not None and not isinstance(threat, ThreatModel):
            raise checks.wrong("threat", threat, "a ThreatModel")
        check_same_victims(uploads)
        self.check_samples(uploads[0].samples)
        granted = threat or ThreatModel()
        granted.check(self.needs_for(uploads[0].task), self.name)
        self._check_simulator(uploads[0].task, uploads[0].samples, granted, simulator)
        if not granted.labels and any(o.labels is not None for o in uploads):
            raise ThreatModelError(
                "the observation contains labels, which this threat model does not grant",
                missing=["labels"],
            )
        if granted.labels and uploads[0].labels is None:
            raise DataError(
                "the threat model grants labels, but the observation contains none",
                field="labels",
                expected="the victims' labels in the observation",
            )
        with deterministic_algorithms(deterministic, uploads[0].gradient.device):
            # Declared as an object: a plug-in may return anything.
            reconstruction: object = self.run(list(uploads), granted, options)
        if not isinstance(reconstruction, Reconstruction):
            problem = f"its run returned a {type(reconstruction).__name__}, not a Reconstruction"
            raise DataError(field="attack", value=self.name, problem=problem)
        return reconstruction

    def _check_simulator(
        self, task: Task, samples: int, granted: ThreatModel, simulator: Simulator | None
    ) -> None:
        if simulator is None:
            if self.learns_from_public_images(task):
                raise DataError(
                    field="simulator",
                    value=None,
                    expected=f"a Simulator: {self.name} learns from public images and the defence",
                )
            return
        if missing := [name for name in ("public", "defense") if not getattr(granted, name)]:
            raise ThreatModelError(
                f"the simulator contains {' and '.join(missing)}, which this threat model does not grant",
                missing=missing,
            )
        simulator.check(task, self.least_public_images(samples), self.name, samples)

    def least_public_images(self, samples: int) -> int:
        """Return the fewest public images that the attack can learn from; the default is `min_public_images`.

        Args:
            samples: The samples of one observation.
        """
        return self.min_public_images

    def simulated_uploads(self, public: int, samples: int) -> int:
        """Return about how many uploads the attack simulates, if it learns; by default every image is in one.

        Args:
            public: The number of public images.
            samples: The samples of one observation.
        """
        return public // samples

    def learns_from_public_images(self, task: Task) -> bool:
        """Return whether the attack needs a simulator for `task`: "public" or "defense" is among its needs.

        Args:
            task: The model and its loss.

        Returns:
            Whether `reconstruct` must be given a `Simulator`.
        """
        return not self.needs_for(task).isdisjoint({"public", "defense"})

    def settings(self) -> dict[str, object]:
        """Return the settings by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def check(self, task: Task) -> None:  # noqa: B027 - overriding it is optional
        """Raise a `RefinerError` if the attack can't be run on `task`; the default accepts every task.

        Args:
            task: The model and its loss.
        """

    def check_samples(self, samples: int) -> None:
        """Raise if the attack can't reconstruct so many samples.

        Args:
            samples: The samples of one observation: a batch, or the batches of all clients of a sum.

        Raises:
            DataError: There are several, and the attack takes one only.
        """
        if self.single_only is not None and samples != 1:
            raise DataError(field="batch", value=samples, expected=f"1: {self.single_only}")

    def check_labels(self, labels: Tensor) -> None:  # noqa: B027 - overriding it is optional
        """Raise a `RefinerError` if the attack can't read batches with such labels; by default it can.

        Args:
            labels: Those of the clients of an audit `[V, B]`, or of the clients of each sum.
        """

    def prepared(self, public: Tensor, defense: KnownDefense) -> Self:
        """Return the attack with settings that fit the public images and the defence; by default itself.

        Args:
            public: Public images `[N, C, H, W]` that are granted to the attacker.
            defense: What is known of the defence; empty if that is not granted.
        """
        return self

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the model that the server sends to clients; the default is `task` itself.

        Args:
            task: The model and its loss.
            samples: The samples of one observation: a batch, or the batches of all clients of a sum.

        Returns:
            The task that uploads are made with, and that the observations given to `reconstruct` have.
        """
        return task

    def send_to(self, task: Task, client: int, clients: int) -> None:  # noqa: B027 - overriding is optional
        """Set the model of a changed task to what one client of a sum receives; by default all get the same.

        Args:
            task: The result of `changed_task`.
            client: The client's number in the sum.
            clients: The clients of a sum.
        """

    @property
    def rounds(self) -> int:
        """The uploads of each client that the attack reads, one in each round; by default one."""
        return 1

    def send_in_round(self, task: Task, round: int) -> None:  # noqa: B027 - overriding it is optional
        """Set the model of a changed task to what all clients receive in a round; by default always the same.

        Args:
            task: The result of `changed_task`.
            round: The number of the round, below `rounds`.
        """

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Return the capabilities that the attack needs for `task`; the default is `needs`.

        Args:
            task: The model and its loss.

        Returns:
            Names of fields of `ThreatModel`.
        """
        return self.needs

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the networks whose weights affect the result, by name; the default is none.

        Args:
            task: The model and its loss.

        Returns:
            The networks by their role, such as "generator".
        """
        return {}

    @abstractmethod
    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the batches; to be overridden, and called by `reconstruct` only.

        Args:
            observations: One or more uploads of the same victims, already checked.
            threat: The capabilities granted; they include all of `needs_for`.
            options: Seed, chunk and the like. An attack may ignore what it has no use for.

        Returns:
            A reconstruction of every victim.
        """
