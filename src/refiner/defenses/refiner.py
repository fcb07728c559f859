"""Refiner: upload the gradient of robust data, which is noise to the eye and trains like the real."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from refiner.core.capture import Captured
from refiner.core.gradients import Gradients, unflatten
from refiner.core.noise import NoiseSource, uniform
from refiner.core.task import Task
from refiner.core.update import Update
from refiner.defenses.base import Batch, Defense
from refiner.defenses.refine.craft import craft
from refiner.defenses.refine.memory import Memory
from refiner.defenses.refine.settings import Settings
from refiner.defenses.refine.start import start
from refiner.errors import DataError, ProtectionError

PAPER: dict[str, object] = {
    "alpha": 0.5,
    "epsilon": 0.1,
    "start": "blend",
    "solver": "descent",
    "element_power": 1.0,
    "relative": False,
    "floor": 0.0,
    "upload": "curved",
}

# Far from a caller's ids, which are ≥ 0 and rarely so large, and from fresh ones, which are small negatives.
_SIGNS = 1 << 62


@dataclass(frozen=True)
class Refiner(Settings, Defense):
    """The paper's defence; the defaults are the best this project can show, `Refiner.paper()` the paper's.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> Refiner(iterations=1).protect(Task(LeNet(), example=x), x, y)
    Update(refiner, victims=1, samples=2, parameters=8)
    >>> Refiner(tau=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: tau = 2: expected a number in [0, 1]
    """

    name: ClassVar[str] = "refiner"

    _memory: Memory = field(init=False, repr=False, compare=False)
    _source: NoiseSource = field(init=False, repr=False, compare=False)
    _captured: Captured = field(init=False, repr=False, compare=False, default_factory=Captured)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_memory", Memory(self.remember))
        object.__setattr__(self, "_source", NoiseSource(self.secret))

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper to the letter: blended start, plain descent with step 1, raw weights, ε = 0.1.

        >>> Refiner.paper(epsilon=0.3).alpha
        0.5
        """
        return cls(**{**PAPER, **changes})

    def refine(
        self, task: Task, x: Tensor, y: Tensor, *, ids: Tensor | None = None, seed: int | None = None
    ) -> tuple[Tensor, Update]:
        """Robust data for `x`, to look at and never to leave the client, and the update made from it.

        >>> from refiner.models import LeNet
        >>> x, y = torch.rand(1, 2, 3, 32, 32), torch.tensor([[3, 5]])
        >>> robust, update = Refiner(iterations=1).refine(Task(LeNet(), example=x[0]), x, y)
        >>> robust.shape
        torch.Size([1, 2, 3, 32, 32])
        """
        batch = self._prepare(task, x, y, ids, seed)
        found: list[Tensor] = []

        def make() -> Gradients:
            upload, robust = self._craft_all(task, batch)
            found.append(robust)
            return unflatten(task, upload)

        update = self._guarded(batch, make)
        return found[0], update

    def _noise(self) -> NoiseSource:
        return self._source

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        upload, _ = self._craft_all(task, batch)
        return unflatten(task, upload)

    def _craft_all(self, task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
        """Uploads `[V, N]` and robust data `[V, B, *input]`, a chunk of victims at a time."""
        self.check_data(task, *map(float, batch.x.aminmax()))
        victims, size = batch.x.shape[:2]
        x, y, ids = batch.x, batch.y, self._ids(batch)
        if self.granularity == "sample":
            x, y, ids = (t.flatten(0, 1)[:, None] for t in (x, y, ids))
        chunks = zip(*(torch.split(t, self.chunk or len(x)) for t in (x, y, ids)), strict=True)
        parts = [self._craft_chunk(task, batch.noise, *chunk) for chunk in chunks]
        upload, robust = (torch.cat(list(tensors)) for tensors in zip(*parts, strict=True))
        if self.granularity == "sample":
            upload = upload.view(victims, size, -1).mean(1)
            robust = robust.view(victims, size, *robust.shape[2:])
        return upload, robust

    def _ids(self, batch: Batch) -> Tensor:
        if batch.ids is not None:
            return batch.ids
        if self.warm_start:
            raise DataError("ids = None: the warm start knows samples by their ids; pass ids=")
        count = batch.y.numel()
        return batch.noise.fresh(count, batch.x.device).view(batch.y.shape)

    def _begin(self, x: Tensor, ids: Tensor, noise: NoiseSource) -> tuple[Tensor, int]:
        """Where the search starts, and how long it may last."""
        known, earlier = None, x
        if self.warm_start:
            found, values = self._memory.recall(ids.flatten(), like=x.flatten(0, 1))
            known, earlier = found.view(*ids.shape, *(1 for _ in x.shape[2:])), values.view_as(x)
            if bool(found.all()):
                return earlier, -(-self.iterations // 2)

        def blend(x: Tensor, ids: Tensor, key: Tensor) -> tuple[Tensor]:
            drawn = uniform(key, ids, tuple(x.shape[2:]), x.dtype)
            return (start(self.start, x, drawn, self.alpha, *self.input_range),)

        (begin,) = self._captured("begin", blend, [x, ids, noise.key.to(x.device)])
        return (begin if known is None else torch.where(known, earlier, begin)), self.iterations

    def _craft_chunk(
        self, task: Task, noise: NoiseSource, x: Tensor, y: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        begin, iterations = self._begin(x, ids, noise)
        sign = x.new_ones(len(x))
        if self.random_sign:
            sign = 1 - 2 * (noise.uniform(ids[:, 0] ^ _SIGNS, (1,), x.dtype)[:, 0] < 0.5).to(x.dtype)

        def crafted(x: Tensor, y: Tensor, begin: Tensor, sign: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            parameters = dict(zip(task.names, values, strict=True))
            return craft(self, task, parameters, x, y, begin, sign, iterations)

        # A recording reads the fixed tensors of the model where they lie now.
        key = (id(task), iterations, tuple(t.data_ptr() for t in task.fixed().values()))
        upload, robust = self._captured(key, crafted, [x, y, begin, sign, *task.parameters().values()])
        if self.warm_start:
            if not bool(robust.isfinite().all()):
                raise ProtectionError("refiner made robust data that is not finite; nothing leaves")
            self._memory.store(ids.flatten(), robust.flatten(0, 1))
        return upload, robust
