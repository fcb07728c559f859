"""`Defense`: settings and one entry point that returns a protected `Update` or raises."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self, final

import torch
from torch import Tensor

from refiner import checks
from refiner.core.input_checks import check_recording
from refiner.core.noise import NoiseSource
from refiner.core.precision import tensor_float32
from refiner.core.task import Task
from refiner.core.update import Update, make_update
from refiner.defenses.batch import Batch, validated_batch
from refiner.defenses.defense_facts import DefenseFacts
from refiner.defenses.result import Protection, Upload
from refiner.defenses.state import DefenseState
from refiner.errors import DataError, ProtectionError, RefinerError, SettingError


class Defense(DefenseFacts, ABC):
    """Turns clients' batches into an `Update`; subclasses are frozen dataclasses of their settings.

    A new defence that changes a gradient derives from `GradientTransform` and implements `transform`. One
    that needs the data derives from `Defense` and implements `compute_upload`. Both set `name`; all other
    facts (`DefenseFacts`) have defaults. Validation, seeds, error handling and the `Update` come from
    `protect`:

    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> from refiner.defenses import GradientTransform
    >>> @dataclass(frozen=True)
    ... class Scaling(GradientTransform):
    ...     '''Multiplies every gradient by a constant.'''
    ...     factor: float = 0.5
    ...     name: ClassVar[str] = "scaling"
    ...
    ...     def transform(self, gradient, noise, samples):
    ...         return {name: self.factor * value for name, value in gradient.items()}
    >>> x, y = torch.rand(3, 4), torch.tensor([0, 1, 1])
    >>> Scaling().protect(Task(torch.nn.Linear(4, 2), example=x), x, y)
    Update(scaling, victims=1, samples=3, parameters=2)
    """

    @final
    def protect(
        self,
        task: Task,
        x: Tensor,
        y: Tensor,
        *,
        ids: Tensor | None = None,
        seed: int | None = None,
        first_victim: int = 0,
        state: DefenseState | None = None,
        training: bool = False,
        noisy: Tensor | None = None,
    ) -> Update:
        """Return the update of one client's batch, or of the batches of `V` clients.

        Args:
            task: The model and its loss.
            x: Inputs `[B, *input]` of one client or `[V, B, *input]` of `V` clients.
            y: Class labels `[B]` or `[V, B]`, or values that the loss compares scores with, `[B, outputs]` or
                `[B]`: soft labels, BCE, regression.
            ids: One integer ≥ 0 per sample, unique over all clients, for a defence with a state. Without ids
                samples are recognised by their content.
            seed: For tests and studies only: makes the noise reproducible, and so public. By default noise
                comes from the operating system or from the client's secret.
            first_victim: The index of the first victim in `x`, for a study that protects victims in chunks.
            state: What the defence remembers between calls, from `init_state`; required by defences that
                remember something, and updated in place.
            training: Replace values that are not finite, NaN by 0, instead of raising an error. A server
                chooses the model: whether a client answers must not tell it anything about the data.
            noisy: For `Refiner`: inputs like `x` that carry their noise already, from `NoisyDataset`.

        Returns:
            The protected gradients.

        Raises:
            DataError: If the data does not fit the task.
            SettingError: If a setting or the state is wrong.
            ProtectionError: If the defence fails or, without `training`, its result is not finite. No update
                is made.
        """
        protection = self.protection(
            task,
            x,
            y,
            ids=ids,
            seed=seed,
            first_victim=first_victim,
            state=state,
            training=training,
            noisy=noisy,
        )
        return protection.update

    @final
    def protection(
        self,
        task: Task,
        x: Tensor,
        y: Tensor,
        *,
        ids: Tensor | None = None,
        seed: int | None = None,
        first_victim: int = 0,
        state: DefenseState | None = None,
        training: bool = False,
        noisy: Tensor | None = None,
        upload: int | None = None,
    ) -> Protection:
        """Return the update together with the robust data it was computed from, if the defence crafts any.

        Args:
            task: The model and its loss.
            x: As in `protect`.
            y: As in `protect`.
            ids: As in `protect`.
            seed: As in `protect`.
            first_victim: As in `protect`.
            state: As in `protect`.
            training: As in `protect`.
            noisy: As in `protect`.
            upload: For a study of several uploads with one seed, such as those of images that keep their
                noise: the number of this one. The later parts of a chain draw new noise for each, and
                `state` is used, which with a seed alone is left as it is.

        Returns:
            The update and, for the client alone, robust data and scores; None where it computes none.

        Raises:
            RefinerError: As `protect`. No update is made.

        >>> from refiner.defenses import Refiner
        >>> from refiner.models import LeNet
        >>> x, y = torch.rand(1, 2, 3, 32, 32), torch.tensor([[3, 5]])
        >>> Refiner(iterations=1).protection(Task(LeNet(), example=x[0]), x, y).robust.shape
        torch.Size([1, 2, 3, 32, 32])
        """
        if seed is not None:
            checks.integer("seed", seed, 0)
            noise = NoiseSource(seed=seed, first_victim=first_victim, upload=upload)
        elif upload is None:
            noise = self.noise_source()
        else:
            raise checks.wrong("upload", upload, "None without a seed")
        if noisy is not None and not self.accepts_noisy_inputs:
            raise DataError(f"noisy: {self.name} adds no noise to inputs; expected None", field="noisy")
        batch = validated_batch(task, x, y, ids, noise, state, training, noisy)
        return self._protected(task, batch, lambda: self.compute_upload(task, batch))

    @final
    def protect_checked(
        self,
        task: Task,
        x: Tensor,
        y: Tensor,
        *,
        ids: Tensor,
        seed: int | None = None,
        state: DefenseState | None = None,
        clients: Sequence[int] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Update:
        """`protect` without its data checks, for a training loop that has checked its dataset once.

        Whether and when a client answers must not depend on its data: with checks per batch it would.

        Args:
            task: The model and its loss.
            x: Inputs `[V, B, *input]` with values in 0..1, on the model's device.
            y: Labels `[V, B]`, all valid classes of the task.
            ids: Integers ≥ 0 `[V, B]`, unique over all clients.
            seed: As in `protect`.
            state: As in `protect`.
            clients: The number of every victim's client in a shared state; by default victim v is client v.
            meanwhile: Called while a GPU still computes, just before the first wait for it.

        Returns:
            The protected gradients.
        """
        noise = self.noise_source() if seed is None else NoiseSource(seed=seed)
        batch = Batch(x.contiguous(), y.contiguous(), ids, noise, (0.0, 1.0), state, clients, training=True)

        def compute() -> Upload:
            upload = self.compute_upload(task, batch)
            meanwhile()
            return upload

        return self._protected(task, batch, compute).update

    def _protected(self, task: Task, batch: Batch, compute: Callable[[], Upload]) -> Protection:
        """The upload that `compute` returns as a `Protection`; any failure becomes an error without data."""
        if task.models is not None and not self.supports_models_per_victim:
            raise DataError(
                f"task with {len(task.models)} models: {self.name} takes one for all victims", field="task"
            )
        if batch.state is not None and not isinstance(batch.state, DefenseState):
            raise SettingError(
                field="state", value=batch.state, expected="the result of init_state() or None"
            )
        check_recording(batch.x)
        try:
            with tensor_float32(False):
                upload = compute()
            update = make_update(
                upload.gradients,
                samples=batch.x.shape[1],
                defense=self.name,
                settings=self.settings(),
                replace_non_finite=batch.training,
            )
            return Protection(update, upload.robust, upload.scores)
        except RefinerError:
            raise
        except torch.OutOfMemoryError:
            failure = "ran out of memory; no update was made; use fewer victims per call"
        except Exception as error:  # any other failure becomes an error too, so that nothing is uploaded
            failure = f"failed ({type(error).__name__}); no update was made"
        # Raised outside the handler: the message and frames of the original error may contain data.
        raise ProtectionError(f"{self.name} {failure}")

    @abstractmethod
    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """Compute the protected gradient of every victim: the method that a subclass implements.

        Args:
            task: The model and its loss.
            batch: The validated data, the noise source and the state, if one was passed.

        Returns:
            Gradients, name → `[V, *shape]`, and robust data if the defence crafts any. Victims are
            independent: the upload of one depends on its own data and index only.
        """

    def check_ready(self) -> None:
        """Raise a `SettingError` if something must be given or fitted before this defence can protect."""

    def noise_source(self) -> NoiseSource:
        """The source of noise for a call without a seed: fresh draws, unless a defence keeps a key."""
        return NoiseSource()

    def init_state(self, samples: int = 0) -> DefenseState:
        """Return an empty state: what the defence will remember between calls of one training.

        Pass it to every `protect` of the training; save its `state_dict()` in the client's own checkpoints.

        Args:
            samples: The number of training samples, so that all of them can be remembered.

        Returns:
            A state that stays empty for a defence that remembers nothing.
        """
        return DefenseState()

    def with_seeded_key(self, seed: int) -> Self:
        """Return the same defence with its secret key derived from `seed`; itself if it has no key.

        Args:
            seed: A number. The key is no better a secret than this number is.

        Returns:
            The defence.
        """
        return self

    @property
    def supports_models_per_victim(self) -> bool:
        """Whether it can protect victims that each have their own model (`Task.with_models`)."""
        return self.needs == "gradient"
