"""Refiner: uploads the gradient of robust data, which look like noise and train like the real data."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from refiner.core.input_range import check_channels, from_unit_range, is_per_channel, to_unit_range
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.refine.batch_checks import check_copies, check_state
from refiner.defenses.refine.channel_range import to_unit_batch
from refiner.defenses.refine.craft import Crafted, craft_robust_data
from refiner.defenses.refine.initialization import initial_robust_data
from refiner.defenses.refine.kept_noise import KeptNoise
from refiner.defenses.refine.memory import RobustDataMemory
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.defenses.refine.refiner_state import RefinerState
from refiner.defenses.refine.search_start import combined_ids, search_start
from refiner.defenses.result import Upload
from refiner.defenses.state import DefenseState
from refiner.errors import SettingError
from refiner.evaluation.network import EvaluationNetwork
from refiner.shaped_noise import NOISE_STATISTICS

LIGHT_SETTINGS: dict[str, object] = {"iterations": 8, "radius": 2.0}
PAPER_SETTINGS: dict[str, object] = {
    "alpha": 0.5,
    "beta": 1.0,
    "iterations": 10,
    "epsilon": 0.1,
    "start": "blend",
    "white": 0.0,
    "search": "always",
    "solver": "descent",
    "element_power": 1.0,
    "relative": False,
    "radius": None,
    "error_feedback": False,
}


@dataclass(frozen=True)
class Refiner(RefinerSettings, Defense):
    """Uploads the gradient of noisy images, moved in batches towards the real gradient (Equation 2).

    By default an image is covered with noise that is shaped like natural images, plus white noise for what
    tells such images apart. In batches of 16 samples and more the noisy images are then moved, within a small
    radius, until the batch's gradient comes close to the real one; what is left over is added to the next
    batch's target. Smaller batches upload the gradient of the noisy images.
    `Refiner.paper()` has the paper's settings.

    An image's noise depends on the client's secret and on the image only, so that many uploads of it can't
    be averaged. A `Refiner` without a secret draws one and keeps it as long as it exists; a copy made by
    `dataclasses.replace` draws a new one.

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
    accepts_noisy_inputs: ClassVar[bool] = True
    cost: ClassVar[str] = (
        "one plain gradient without a search, about 3 ι with one; ι of the evaluation network if β > 0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Made now, not at the first upload: two threads must not draw two keys, and a file may change.
        self._noise  # noqa: B018

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return Refiner with the paper's settings: blended start, descent with step 1, raw UM, ε = 0.1.

        Args:
            changes: Settings that differ from the paper's.

        Returns:
            The defence.

        >>> Refiner.paper(epsilon=0.3).alpha
        0.5
        """
        return cls(**{**PAPER_SETTINGS, **changes})

    @classmethod
    def light(cls, **changes: Any) -> Self:
        """Return Refiner with a third of the default's work, for a CPU: 8 iterations in a ball of radius 2.

        Args:
            changes: Settings that differ from these. Without a search there is no work to do less of.

        Returns:
            The defence.

        >>> Refiner.light().iterations, Refiner.light(alpha=2).radius
        (8, 2.0)
        """
        return cls(**changes) if changes.get("search") == "never" else cls(**{**LIGHT_SETTINGS, **changes})

    def noisy(self, x: Tensor) -> Tensor:
        """Return images with their noise: what an upload without a search is the gradient of.

        Args:
            x: Images `[B, C, H, W]` with values in `input_range`.

        Returns:
            The images of the same shape; an image always gets the same noise.

        Raises:
            DataError: There are no statistics for images of this shape.

        >>> defense, x = Refiner(), torch.rand(2, 3, 32, 32)
        >>> torch.equal(defense.noisy(x)[1:], defense.noisy(x[1:]))
        True
        """
        source, statistics = self._noise.source, self._noise.for_shape(tuple(x.shape[1:]), x.device)
        per_channel = is_per_channel(self.input_range)
        if per_channel:
            check_channels(self.input_range, tuple(x.shape[1:]))
            x = to_unit_range(x, self.input_range, x.ndim - 1)
        ids, key = source.identify(x, 1, *self.limits()), source.key.to(x.device)
        noisy = initial_robust_data(self._public_settings, x[None], ids[None], key, statistics)[0]
        return from_unit_range(noisy, self.input_range, x.ndim - 1) if per_channel else noisy

    def with_seeded_key(self, seed: int) -> Self:
        """The same settings with a secret derived from `seed`."""
        return replace(self, secret=hashlib.sha256(f"refiner study {seed}".encode()).digest())

    def init_state(self, samples: int = 0) -> DefenseState:
        """An empty state: of residuals and counts of searches, or of robust data with a warm start.

        A warm start's has room for `samples` or `memory_size` samples, whichever is more.
        """
        if self.warm_start:
            return RobustDataMemory(max(self.memory_size, samples))
        return RefinerState() if self.error_feedback or self.search_budget is not None else DefenseState()

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The evaluation network if PM counts, and the statistics of shaped noise."""
        device = task.model.get_parameter(task.names[0]).device
        networks: dict[str, nn.Module] = {}
        if self.beta and self.privacy == "network":
            networks["evaluation"] = self.network or EvaluationNetwork.bundled(device)
        if (noise := self._noise.for_shape(task.input_shape, device)) is not None:
            networks[NOISE_STATISTICS] = noise
        return networks

    @property
    def supports_models_per_victim(self) -> bool:
        """Whether all victims are solved in one call, as a model per victim needs it."""
        return self.chunk is None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Refiner has a secret key and can't be pickled or copied; make a new one from its settings"
        )

    def noise_source(self) -> NoiseSource:
        """The source keyed by the secret; the same in every call."""
        return self._noise.source

    @cached_property
    def _contents(self) -> dict[int, int]:
        """The content of every sample that came with an id."""
        return {}

    @cached_property
    def _noise(self) -> KeptNoise:
        return KeptNoise(self)

    @cached_property
    def _public_settings(self) -> RefinerSettings:
        """The settings without the secret: the task's recorded CUDA graphs keep them alive."""
        names = (f.name for f in fields(RefinerSettings) if f.name != "secret")
        return RefinerSettings(**{name: getattr(self, name) for name in names})

    @property
    def noise_ratio_applies(self) -> bool:
        """Not with shaped noise: the evaluation network was trained on uniform noise and can't judge it."""
        return self.start != "natural"

    def reveals_more_in_batches(self, batch: int) -> bool:
        """Where batches of this size are searched, and single images are not."""
        return self.searches(batch) and not self.searches(1)

    @property
    def has_guarantee(self) -> bool:
        """Whether uploads reveal no more than noisy images: without a search, with Gaussian noise."""
        return self.search == "never" and self.start == "natural" and self.alpha > 0

    def guarantee(self) -> str:
        """What is proven about an upload, as one sentence.

        >>> print(Refiner(search="never").guarantee())
        all uploads of an image together are a Gaussian mechanism: two images at a distance d in the ...
        """
        if not self.has_guarantee:
            return "none: the protection is measured, not proven"
        return self._noise.guarantee()

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """Uploads and robust data `[V, B, *input]`, a chunk of victims at a time."""
        model_task = task
        task, batch = to_unit_batch(self.input_range, task, batch)
        self.check_data(task, *batch.value_range)
        check_state(self, batch, expected=type(self.init_state()))
        check_copies(self, batch, self._contents)
        step, chunks = self.chunk or len(batch.x), []
        for first in range(0, len(batch.x), step):
            chunks.append(self._craft(task, batch.rows(slice(first, first + step))))
        upload, robust, scores = (t[0] if len(t) == 1 else torch.cat(t) for t in zip(*chunks, strict=True))
        # With a budget some of them may be those of noisy images.
        real = scores.numel() > 0 and self.search_budget is None
        if task is not model_task:
            robust = from_unit_range(robust, self.input_range, len(task.input_shape))
        return Upload(task.unflatten(upload), robust, scores if real else None)

    def _craft(self, task: Task, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Uploads `[V, N]`, robust data and scores of some victims; what the state remembers is renewed."""
        settings = self._public_settings
        statistics = self._noise.for_shape(tuple(batch.x.shape[2:]), batch.x.device)
        # A study with a public seed must not change what a client's own uploads depend on.
        # One of several uploads of a study has the study's own state.
        is_alone = batch.noise.seeded and batch.noise.upload is None
        state = None if is_alone else batch.state
        memory = state if isinstance(state, RobustDataMemory) else None
        own_state = state if isinstance(state, RefinerState) else None
        feedback = own_state.feedback if own_state is not None and self.error_feedback else None
        content_ids = batch.noise.identify(batch.x, 2, *self.limits())
        start, iterations, remember = search_start(settings, task, batch, content_ids, memory, statistics)
        clients = batch.clients or range(len(batch.x))
        residual = batch.x.new_zeros(len(batch.x), task.size)
        if feedback is not None:
            residual = feedback.residuals(clients, like=residual)

        searched = self._searched(batch, content_ids, own_state)

        def craft(
            x: Tensor, y: Tensor, start: Tensor, searched: Tensor, residual: Tensor, *values: Tensor
        ) -> Crafted:
            parameters = dict(zip(task.names, values, strict=True))
            return craft_robust_data(
                settings, task, parameters, x, y, start, searched, residual, iterations, statistics
            )

        # A recorded graph reads the model's other tensors, and the network's weights, at their addresses.
        parameters, others = task.all_tensors()
        addresses = tuple(t.data_ptr() for t in others.values())
        key = ("refiner", settings, id(settings.network), id(statistics), iterations, addresses)
        inputs = [batch.x, batch.y, start, searched, residual, *parameters.values()]
        upload, robust, residual, scores = task.graphs(key, craft, inputs)
        if feedback is not None and self.searches(batch.x.shape[1]):
            feedback.store(clients, residual)
        remember(robust)
        return upload, robust, scores

    def _searched(self, batch: Batch, content_ids: Tensor, state: RefinerState | None) -> Tensor:
        """Which samples `[V, B]` are searched, if their batch is."""
        if self.search_budget is None or state is None or not self.searches(batch.x.shape[1]):
            return torch.ones(batch.x.shape[:2], dtype=torch.bool, device=batch.x.device)
        if batch.ids is None and batch.noisy is not None:
            raise SettingError(
                "ids = None: search_budget counts by id where copies of an image are augmented; pass ids",
                field="ids",
                expected="the id of every sample",
            )
        # By a client's content too: another process of the same state may pass no ids.
        clients = torch.tensor(list(batch.clients or range(len(batch.x))), device=content_ids.device)
        keys = [combined_ids(content_ids, clients[:, None]), *([] if batch.ids is None else [batch.ids])]
        return state.searches.take(keys, self.search_budget)
