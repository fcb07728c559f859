"""Refiner: upload the gradient of robust data, which is noise to the eye and trains like the real."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor

from refiner.core.cuda_graphs import Captured
from refiner.core.gradients import Gradients, unflatten
from refiner.core.noise import NoiseSource, uniform
from refiner.core.task import Task
from refiner.core.update import Update
from refiner.defenses.base import Batch, Defense
from refiner.defenses.refine.craft import craft
from refiner.defenses.refine.initialization import start
from refiner.defenses.refine.memory import Found, Memory
from refiner.defenses.refine.settings import Settings
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
    "warm_start": False,
}

# Sets the stream of a sample's sign apart from the stream of its noise.
_SIGNS = 1 << 62
# An odd factor that spreads ids over all bits.
_IDS = 0x1E3779B97F4A7C15


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
    keyed: ClassVar[bool] = True
    cost: ClassVar[str] = "about 2 ι plain gradients and ι steps of the evaluation network"

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

        It has no floor, so that nothing refuses an upload that is all but the real gradient.

        >>> Refiner.paper(epsilon=0.3).alpha
        0.5
        """
        return cls(**{**PAPER, **changes})

    def for_training(self, samples: int, seed: int | None) -> Self:
        """The same with room to remember all samples; with `seed`, a secret that anyone can compute."""
        changes: dict[str, Any] = {"remember": max(self.remember, samples)}
        if seed is not None:
            changes["secret"] = hashlib.sha256(f"refiner study {seed}".encode()).digest()
        return replace(self, **changes)

    def state(self) -> dict[str, Tensor]:
        """The robust data that the warm start remembers."""
        return self._memory.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the robust data of `state`."""
        self._memory.restore(state)

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
            tensors, robust = self._craft_all(task, batch)
            found.append(robust)
            return tensors

        update = self._guarded(task, batch, make)
        return found[0], update

    @property
    def takes_models(self) -> bool:
        """Whether victims may have models of their own: not where they are taken apart."""
        return self.granularity == "batch" and self.chunk is None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Refiner holds a secret key and can't be pickled or copied; make one from its settings"
        )

    def _noise(self) -> NoiseSource:
        return self._source

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        return self._craft_all(task, batch)[0]

    def _craft_all(self, task: Task, batch: Batch) -> tuple[Gradients, Tensor]:
        """Uploads and robust data `[V, B, *input]`, a chunk of victims at a time."""
        self.check_data(task, *batch.spread)
        victims, size = batch.x.shape[:2]
        x, y, ids = batch.x, batch.y, batch.ids
        if self.granularity == "sample":
            x, y = (t.flatten(0, 1)[:, None] for t in (x, y))
            ids = None if ids is None else ids.flatten(0, 1)[:, None]
        parts = []
        for first in range(0, len(x), self.chunk or len(x)):
            part = slice(first, first + (self.chunk or len(x)))
            parts.append(
                self._craft_chunk(task, batch.noise, x[part], y[part], None if ids is None else ids[part])
            )
        uploads, robusts, confirmations = zip(*parts, strict=True)
        upload, robust = (t[0] if len(t) == 1 else torch.cat(t) for t in (uploads, robusts))
        if self.granularity == "sample":
            upload = upload.view(victims, size, -1).mean(1)
            robust = robust.view(victims, size, *robust.shape[2:])
        tensors = unflatten(task, upload)
        # Last, since it waits for the GPU, which was busy until now.
        for confirm in confirmations:
            confirm()
        return tensors, robust

    def _begin(self, x: Tensor, names: Tensor, found: Found | None, key: Tensor) -> tuple[Tensor, int]:
        """Where the search starts, and how long it may last."""
        if found is not None and found.held == len(found.known):
            return found.values.view_as(x), -(-self.iterations // 2)

        def blend(x: Tensor, names: Tensor, key: Tensor) -> tuple[Tensor]:
            drawn = uniform(key, names, tuple(x.shape[2:]), x.dtype)
            return (start(self.start, x, drawn, self.alpha, *self.input_range),)

        (begin,) = self._captured("begin", blend, [x, names, key])
        if found is not None and found.held:
            known = found.known.view(*x.shape[:2], *(1 for _ in x.shape[2:]))
            begin = torch.where(known, found.values.view_as(x), begin)
        return begin, self.iterations

    def _craft_chunk(
        self, task: Task, noise: NoiseSource, x: Tensor, y: Tensor, ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Callable[[], None]]:
        """Uploads `[V, N]`, robust data, and what refuses them if they hide too little, or remembers them."""
        names = noise.identify(x, 2, *self.input_range)
        # Robust data of a study's public seed must not become the start of a client's own search.
        remembers = self.warm_start and noise is self._source
        # An id that comes back with another image, cropped or mirrored, is another sample: its robust data
        # would carry the old image into the new upload.
        known = names if ids is None else names ^ (ids * _IDS)
        found = self._memory.find(known.flatten(), like=x.flatten(0, 1)) if remembers else None
        begin, iterations = self._begin(x, names, found, noise.key.to(x.device))
        sign = x.new_ones(len(x))
        if self.random_sign:
            if x.shape[1] > 1:
                raise DataError(
                    "random_sign with B > 1: the sign of a sample would change; use granularity='sample'"
                )
            sign = 1 - 2 * (noise.uniform(names[:, 0] ^ _SIGNS, (1,), x.dtype)[:, 0] < 0.5).to(x.dtype)

        def crafted(x: Tensor, y: Tensor, begin: Tensor, sign: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            parameters = dict(zip(task.names, values, strict=True))
            return craft(self, task, parameters, x, y, begin, sign, iterations)

        # A recording reads the fixed tensors of the model where they lie now.
        parameters, fixed = task.held()
        key = (id(task), iterations, tuple(t.data_ptr() for t in fixed.values()))
        inputs = [x, y, begin, sign, *parameters.values()]
        upload, robust, flags = self._captured(key, crafted, inputs)

        def confirm() -> None:
            hidden, sound = flags.tolist()
            if not hidden:
                raise ProtectionError(
                    f"refiner: an upload would be all but the real gradient (floor = {self.floor}): "
                    "the model hardly feels the noise; nothing leaves"
                )
            # What is not finite is refused later; remembered, it would spoil all later rounds of its samples.
            if found is not None and sound:
                self._memory.store(known.flatten(), robust.flatten(0, 1), found)

        return upload, robust, confirm
