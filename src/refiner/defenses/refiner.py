"""Refiner: uploads the gradient of robust data, which looks like noise but trains like the real data."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from refiner.core.noise import NoiseSource, uniform
from refiner.core.task import Task
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.refine.craft import craft_robust_data
from refiner.defenses.refine.initialization import initial_robust_data
from refiner.defenses.refine.memory import Lookup, RobustDataMemory
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.defenses.result import Upload
from refiner.defenses.state import DefenseState
from refiner.errors import DataError, ProtectionError, SettingError
from refiner.evaluation.network import EvaluationNetwork

PAPER_SETTINGS: dict[str, object] = {
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

# Separates the random stream of a sample's sign from that of its noise.
_SIGN_STREAM = 1 << 62
# An odd factor that spreads ids over all 64 bits.
_ID_FACTOR = 0x1E3779B97F4A7C15


@dataclass(frozen=True)
class Refiner(RefinerSettings, Defense):
    """Crafts robust data by Equation 2 of the paper and uploads its gradient.

    The defaults give the best results that this project has measured; `Refiner.paper()` has the paper's
    settings. An image's noise depends on the client's secret and on the image only, so that many uploads of
    it can't be averaged. A `Refiner` without a secret draws one and keeps it as long as it exists; a copy
    made by `dataclasses.replace` draws a new one.

    Paper: Fan et al., Refiner: Data Refining against Gradient Leakage Attacks in Federated Learning, USENIX
    Security 2025.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> Refiner(iterations=1).protect(Task(LeNet(), example=x), x, y)
    Update(refiner, victims=1, samples=2, parameters=8)
    >>> Refiner(tau=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: tau = 2: expected a number in [0, 1]
    """

    name: ClassVar[str] = "refiner"
    reference: ClassVar[str] = (
        "Fan et al., Refiner: Data Refining against Gradient Leakage Attacks in Federated Learning, "
        "USENIX Security 2025"
    )
    uses_secret_key: ClassVar[bool] = True
    cost: ClassVar[str] = "about 2 ι plain gradients and ι gradients of the evaluation network"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Made now, not at the first upload: two threads must not draw two keys.
        self._noise_source  # noqa: B018

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return Refiner with the paper's settings: blended start, descent with step 1, raw UM, ε = 0.1.

        There is no floor, so that an upload that is almost the real gradient is not rejected.

        Args:
            changes: Settings that differ from the paper's.

        Returns:
            The defence.

        >>> Refiner.paper(epsilon=0.3).alpha
        0.5
        """
        return cls(**{**PAPER_SETTINGS, **changes})

    def with_seeded_key(self, seed: int) -> Self:
        """The same settings with a secret derived from `seed`."""
        return replace(self, secret=hashlib.sha256(f"refiner study {seed}".encode()).digest())

    def init_state(self, samples: int = 0) -> DefenseState:
        """With `warm_start`, an empty memory for `samples` or `memory_size` samples, whichever is more."""
        if not self.warm_start:
            return DefenseState()
        return RobustDataMemory(max(self.memory_size, samples))

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The evaluation network."""
        if self.network is not None:
            return {"evaluation": self.network}
        device = task.model.get_parameter(task.names[0]).device
        return {"evaluation": EvaluationNetwork.bundled(device)}

    @property
    def supports_models_per_victim(self) -> bool:
        """Whether all victims are solved in one call, as a model per victim needs it."""
        return self.granularity == "batch" and self.chunk is None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Refiner has a secret key and can't be pickled or copied; make a new one from its settings"
        )

    def noise_source(self) -> NoiseSource:
        """The source keyed by the secret; the same in every call."""
        return self._noise_source

    @cached_property
    def _noise_source(self) -> NoiseSource:
        return NoiseSource(self.secret)

    @cached_property
    def _public_settings(self) -> RefinerSettings:
        """The settings without the secret: the task's recorded CUDA graphs keep them alive."""
        names = (f.name for f in fields(RefinerSettings) if f.name != "secret")
        return RefinerSettings(**{name: getattr(self, name) for name in names})

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """Uploads and robust data `[V, B, *input]`, a chunk of victims at a time."""
        self.check_data(task, *batch.value_range)
        memory = self._memory(batch)
        victims, size = batch.x.shape[:2]
        x, y, ids = batch.x, batch.y, batch.ids
        if self.granularity == "sample":
            x, y = (t.flatten(0, 1)[:, None] for t in (x, y))
            ids = None if ids is None else ids.flatten(0, 1)[:, None]
        chunks = []
        for first in range(0, len(x), self.chunk or len(x)):
            rows = slice(first, first + (self.chunk or len(x)))
            chunk_ids = None if ids is None else ids[rows]
            chunks.append(self._craft_chunk(task, batch.noise, x[rows], y[rows], chunk_ids, memory))
        uploads, robusts, confirmations = zip(*chunks, strict=True)
        upload, robust = (t[0] if len(t) == 1 else torch.cat(t) for t in (uploads, robusts))
        if self.granularity == "sample":
            upload = upload.view(victims, size, -1).mean(1)
            robust = robust.view(victims, size, *robust.shape[2:])
        gradients = task.unflatten(upload)
        # Last, since it waits for the GPU.
        for confirm in confirmations:
            confirm()
        return Upload(gradients, robust)

    def _memory(self, batch: Batch) -> RobustDataMemory | None:
        """The memory of a warm start; None without one, and with a seed.

        Robust data made with a study's public seed must not become the start of a client's own search.
        """
        if not self.warm_start or batch.noise.seeded:
            return None
        if not isinstance(batch.state, RobustDataMemory):
            raise SettingError(
                f"state = {type(batch.state).__name__}: warm_start = True needs a state; make it once with "
                "state = defense.init_state() and pass state=state to every call",
                field="state",
                expected="the result of init_state()",
            )
        return batch.state

    def _craft_chunk(
        self,
        task: Task,
        noise: NoiseSource,
        x: Tensor,
        y: Tensor,
        ids: Tensor | None,
        memory: RobustDataMemory | None,
    ) -> tuple[Tensor, Tensor, Callable[[], None]]:
        """Uploads `[V, N]`, robust data, and a function that rejects or remembers them."""
        content_ids = noise.identify(x, 2, *self.input_range)
        # The content is part of the key: an id whose image was cropped or mirrored is another sample, and old
        # robust data would carry the old image into the new upload.
        keys = (content_ids if ids is None else content_ids ^ (ids * _ID_FACTOR)).flatten()
        lookup = None if memory is None else memory.lookup(keys, like=x.flatten(0, 1))
        start, iterations = self._start(task, x, content_ids, lookup, noise.key.to(x.device))
        sign = self._random_signs(x, content_ids, noise) if self.random_sign else x.new_ones(len(x))
        settings = self._public_settings

        def craft(x: Tensor, y: Tensor, start: Tensor, sign: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            parameters = dict(zip(task.names, values, strict=True))
            return craft_robust_data(settings, task, parameters, x, y, start, sign, iterations)

        # A recorded graph reads the model's other tensors, and the network's weights, at their addresses.
        parameters, others = task.all_tensors()
        addresses = tuple(t.data_ptr() for t in others.values())
        key = ("refiner", settings, id(settings.network), iterations, addresses)
        upload, robust, flags = task.graphs(key, craft, [x, y, start, sign, *parameters.values()])

        def confirm() -> None:
            differs, finite = flags.tolist()
            if not differs:
                raise ProtectionError(
                    f"refiner: the upload would be almost the real gradient (floor = {self.floor}): "
                    "the model hardly reacts to the noise; no update was made"
                )
            # Values that are not finite are rejected later; remembered, they would spoil all later rounds.
            if memory is not None and finite:
                memory.store(keys, robust.flatten(0, 1), lookup)

        return upload, robust, confirm

    def _start(
        self, task: Task, x: Tensor, content_ids: Tensor, lookup: Lookup | None, key: Tensor
    ) -> tuple[Tensor, int]:
        """The start of the search, and its number of iterations."""
        if lookup is not None and lookup.hits == len(lookup.stored):
            return lookup.values.view_as(x), -(-self.iterations // 2)
        settings = self._public_settings

        def initialize(x: Tensor, content_ids: Tensor, key: Tensor) -> tuple[Tensor]:
            noise = uniform(key, content_ids, tuple(x.shape[2:]), x.dtype)
            return (initial_robust_data(settings.start, x, noise, settings.alpha, *settings.input_range),)

        (start,) = task.graphs(("refiner start", settings), initialize, [x, content_ids, key])
        if lookup is not None and lookup.hits:
            stored = lookup.stored.view(*x.shape[:2], *(1 for _ in x.shape[2:]))
            start = torch.where(stored, lookup.values.view_as(x), start)
        return start, self.iterations

    def _random_signs(self, x: Tensor, content_ids: Tensor, noise: NoiseSource) -> Tensor:
        """±1 per victim, `[V]`, fixed for each image."""
        if x.shape[1] > 1:
            raise DataError(
                "random_sign with B > 1: the sign of a sample would change between batches; "
                "use granularity='sample'",
                field="random_sign",
            )
        drawn = noise.uniform(content_ids[:, 0] ^ _SIGN_STREAM, (1,), x.dtype)[:, 0]
        return 1 - 2 * (drawn < 0.5).to(x.dtype)
