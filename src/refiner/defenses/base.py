"""What every defence is: settings, and one way in that lets nothing out unless it is protected."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Self, final

import torch
from torch import Tensor

from refiner import checks
from refiner.core.gradients import Gradients, replayed
from refiner.core.input_checks import check_recording, dense, kind
from refiner.core.noise import NoiseSource
from refiner.core.precision import tensor_float32
from refiner.core.task import Task
from refiner.core.update import Update, seal
from refiner.errors import DataError, ProtectionError, RefinerError


@dataclass(frozen=True)
class Batch:
    """What a defence protects: `x [V, B, *input]`, `y [V, B]`, ids if they were given; and its noise."""

    x: Tensor
    y: Tensor
    ids: Tensor | None
    noise: NoiseSource
    spread: tuple[float, float]
    """The least and the greatest value of x."""


class Defense(ABC):
    """Turns clients' batches into an `Update`; subclasses are frozen dataclasses of their settings."""

    name: ClassVar[str]
    needs: ClassVar[Literal["data", "gradient"]] = "data"
    """Whether it must see the data, or can be given a gradient (see `GradientTransform`)."""
    cost: ClassVar[str] = ""
    """What it takes beside the plain gradient, in a few words."""

    @final
    def protect(
        self,
        task: Task,
        x: Tensor,
        y: Tensor,
        *,
        ids: Tensor | None = None,
        seed: int | None = None,
        first: int = 0,
    ) -> Update:
        """The update of one client's batch `[B, *input]`, or of `V` clients' `[V, B, *input]`.

        `ids` name the samples (integers ≥ 0, different for different samples of all clients) for a defence
        that remembers them. Protecting draws come from the operating system; `seed` is for tests and studies,
        and `first` for those that protect their victims in parts: the place of the first one of this part.
        If anything is wrong, or goes wrong, this raises and nothing is made.
        """
        batch = self._prepare(task, x, y, ids, seed, first)
        return self._guarded(task, batch, lambda: self._upload(task, batch))

    @final
    def protect_checked(
        self,
        task: Task,
        x: Tensor,
        y: Tensor,
        *,
        ids: Tensor,
        seed: int | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Update:
        """`protect` for an engine that has checked its data once: each time it takes as long as a step.

        `x [V, B, *input]` in 0..1, `y` in the task's classes and `ids` ≥ 0 are on the model's device.
        `meanwhile` is called before the last look at what was made, for which a GPU must be waited for.
        """
        noise = self._noise() if seed is None else NoiseSource(seed=seed)
        batch = Batch(x.contiguous(), y.contiguous(), ids, noise, (0.0, 1.0))

        def make() -> Gradients:
            tensors = self._upload(task, batch)
            meanwhile()
            return tensors

        return self._guarded(task, batch, make)

    def _guarded(self, task: Task, batch: Batch, make: Callable[[], Gradients]) -> Update:
        """The update that `make` gives, or an error and nothing."""
        if task.models is not None and not self.takes_models:
            raise DataError(f"task with {len(task.models)} models: {self.name} takes one for all victims")
        check_recording(batch.x)
        try:
            with tensor_float32(False):
                tensors = make()
            return seal(tensors, samples=batch.x.shape[1], defense=self.name, settings=self.settings())
        except RefinerError:
            raise
        except torch.OutOfMemoryError:
            failure = "ran out of memory; nothing leaves; use fewer victims a call"
        except Exception as error:  # whatever it is: it becomes an error, and nothing leaves
            failure = f"failed ({type(error).__name__}); nothing leaves"
        # Raised out here, so that no message or frame of what went wrong goes with it: they may hold data.
        raise ProtectionError(f"{self.name} {failure}")

    @property
    def takes_models(self) -> bool:
        """Whether it protects victims who each have a model of their own (`Task.each`)."""
        return self.needs == "gradient"

    keyed: ClassVar[bool] = False
    """Whether its noise depends on a key that it keeps for a whole training, not on fresh draws."""

    def for_training(self, samples: int, seed: int | None) -> Self:
        """The same defence for a training of so many samples; a study's `seed` makes its key, if it has one.

        A client on its own has no such seed: its key comes from the operating system.
        """
        return self

    def state(self) -> dict[str, Tensor]:
        """What it remembers between rounds, for a checkpoint on the client's own machine; it never leaves."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027 (most remember nothing)
        """Remember what `state` held."""

    @property
    def proves(self) -> bool:
        """Whether something is proven about an upload, as `guarantee` tells."""
        return False

    def guarantee(self) -> str:
        """What is proven about an upload; of most defences nothing is."""
        return "none: what it hides is measured, not proven"

    def wire_bytes(self, shapes: Mapping[str, torch.Size]) -> int:
        """How many bytes one client's upload of parameters of these shapes takes, packed.

        An entry that is not packed counts as 4, whatever the type of the model's numbers.

        >>> from refiner.defenses import NoDefense
        >>> NoDefense().wire_bytes({"weight": torch.Size([10, 3])})
        120
        """
        return 4 * sum(shape.numel() for shape in shapes.values())

    def settings(self) -> dict[str, object]:
        """The settings by name, less what is private to the client."""
        chosen = (f.name for f in fields(self) if f.init and not f.metadata.get("private"))  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in chosen}

    def _prepare(
        self, task: Task, x: Tensor, y: Tensor, ids: Tensor | None, seed: int | None, first: int = 0
    ) -> Batch:
        if seed is not None:
            checks.integer("seed", seed, 0)
        noise = self._noise() if seed is None else NoiseSource(seed=seed, first=first)
        return _batch(task, x, y, ids, noise)

    def _noise(self) -> NoiseSource:
        return NoiseSource()

    @abstractmethod
    def _upload(self, task: Task, batch: Batch) -> Gradients:
        """The protected gradient of every victim."""


class GradientTransform(Defense):
    """A defence that needs no more than a gradient, so that it can also follow another one in a chain."""

    needs = "gradient"

    @abstractmethod
    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """What leaves instead of `gradient`, name → `[V, *shape]`; each is the mean over `samples` samples.

        Victims are independent: what one uploads depends on its own gradient and its place among them alone.
        """

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        return self.transform(replayed(task, batch.x, batch.y), batch.noise, batch.x.shape[1])


def _batch(task: Task, x: Tensor, y: Tensor, ids: Tensor | None, noise: NoiseSource) -> Batch:
    if not isinstance(task, Task):
        raise DataError(
            f"task = {type(task).__name__}: expected a Task; make one with Task(model, example=x)"
        )
    if not dense(x) or not x.is_floating_point():
        raise DataError(f"x = {kind(x)}: expected dense floating-point inputs")
    if not dense(y) or y.dtype != torch.long:
        raise DataError(f"y = {kind(y)}: expected dense labels of dtype torch.int64")
    shape = task.input_shape
    axes = x.ndim - len(shape)
    if axes not in (1, 2) or tuple(x.shape[axes:]) != shape or 0 in x.shape[:axes]:
        wanted = ", ".join(map(str, shape))
        raise DataError(
            f"x of shape {list(x.shape)}: expected [B, {wanted}] or [V, B, {wanted}], V and B ≥ 1"
        )
    if y.shape != x.shape[:axes]:
        raise DataError(
            f"y of shape {list(y.shape)}: expected {list(x.shape[:axes])}, a label for every sample"
        )
    if ids is not None:
        if not dense(ids) or ids.dtype != torch.long or ids.shape != x.shape[:axes]:
            wanted = f"dense torch.int64 ids of shape {list(x.shape[:axes])}"
            raise DataError(f"ids = {kind(ids)}: expected {wanted}")
        if ids.is_meta:
            raise DataError("ids on meta: expected a device that holds values")
    if axes == 1:
        x, y, ids = x[None], y[None], None if ids is None else ids[None]
    parameter = task.model.get_parameter(task.names[0])
    if x.device != parameter.device or y.device != x.device:
        raise DataError(
            f"x on {x.device}, y on {y.device}: expected both on the model's device, {parameter.device}"
        )
    if x.dtype == torch.float16:
        raise DataError("x of torch.float16: gradients of gradients overflow it; use float32 or bfloat16")
    if x.dtype != parameter.dtype:
        raise DataError(f"x of {x.dtype}: expected the model's dtype, {parameter.dtype}")
    known = None if ids is None else ids.to(x.device)
    spread = _spread(x.detach(), y, known, task.classes)
    return Batch(x.detach().contiguous(), y.contiguous(), known, noise, spread)


def _spread(x: Tensor, y: Tensor, ids: Tensor | None, classes: int) -> tuple[float, float]:
    """The least and the greatest value of x; refuses what is out of range."""
    values = torch.stack(x.aminmax())
    counts = torch.stack([*y.aminmax(), y.new_zeros(()) if ids is None else ids.min()])
    # Looked at only now: a look waits for the GPU.
    (low, high), (least, most, first) = values.tolist(), counts.tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError("x: holds NaN or infinity; nothing leaves")
    if least < 0 or most >= classes:
        raise DataError(
            f"y holds label {least if least < 0 else most}: expected labels in [0, {classes - 1}]"
        )
    if first < 0:
        raise DataError(f"ids hold {first}: expected ids ≥ 0")
    return low, high
