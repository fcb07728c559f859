"""Refiner: uploads the gradient of robust data, which looks like noise but trains like the real data."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.refine.craft import Crafted, craft_robust_data
from refiner.defenses.refine.error_feedback import ErrorFeedback
from refiner.defenses.refine.initialization import initial_robust_data, noise_statistics
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.defenses.result import Upload
from refiner.defenses.state import DefenseState
from refiner.errors import SettingError
from refiner.evaluation.network import EvaluationNetwork

PAPER_SETTINGS: dict[str, object] = {
    "alpha": 0.5,
    "beta": 1.0,
    "iterations": 10,
    "epsilon": 0.1,
    "start": "blend",
    "search": "always",
    "solver": "descent",
    "element_power": 1.0,
    "relative": False,
    "radius": None,
    "error_feedback": False,
}


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
        """With error feedback, an empty state for the clients' residuals."""
        return ErrorFeedback() if self.error_feedback else DefenseState()

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The evaluation network if PM counts, and the statistics of shaped noise."""
        device = task.model.get_parameter(task.names[0]).device
        networks: dict[str, nn.Module] = {}
        if self.beta and self.privacy == "network":
            networks["evaluation"] = self.network or EvaluationNetwork.bundled(device)
        if self.start == "natural":
            networks["noise statistics"] = noise_statistics(self.statistics, task.input_shape, device)
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
        state = self._feedback_state(batch)
        clients = batch.clients or range(len(batch.x))
        step, chunks = self.chunk or len(batch.x), []
        for first in range(0, len(batch.x), step):
            rows = slice(first, first + step)
            crafted = self._craft(task, batch.noise, batch.x[rows], batch.y[rows], state, clients[rows])
            chunks.append(crafted[:2])
        upload, robust = (t[0] if len(t) == 1 else torch.cat(t) for t in zip(*chunks, strict=True))
        return Upload(task.unflatten(upload), robust)

    def _feedback_state(self, batch: Batch) -> ErrorFeedback | None:
        """The state of error feedback; None without it, without a search, and with a seed.

        A study with a public seed must not change what a client's own uploads depend on.
        """
        if not self.error_feedback or not self.searches(batch.x.shape[1]) or batch.noise.seeded:
            return None
        if not isinstance(batch.state, ErrorFeedback):
            raise SettingError(
                f"state = {type(batch.state).__name__}: error_feedback = True needs a state; make it once "
                "with state = defense.init_state() and pass state=state to every call",
                field="state",
                expected="the result of init_state()",
            )
        return batch.state

    def _craft(
        self,
        task: Task,
        noise: NoiseSource,
        x: Tensor,
        y: Tensor,
        state: ErrorFeedback | None,
        clients: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Uploads `[V, N]` and robust data of some victims; their residuals are stored."""
        settings, statistics = self._public_settings, None
        if self.start == "natural":
            statistics = noise_statistics(self.statistics, tuple(x.shape[2:]), x.device)

        def craft(
            x: Tensor, y: Tensor, ids: Tensor, key: Tensor, residual: Tensor, *values: Tensor
        ) -> Crafted:
            parameters = dict(zip(task.names, values, strict=True))
            start = initial_robust_data(settings, x, ids, key, statistics)
            return craft_robust_data(settings, task, parameters, x, y, start, residual, statistics)

        # A recorded graph reads the model's other tensors, and the network's weights, at their addresses.
        parameters, others = task.all_tensors()
        addresses = tuple(t.data_ptr() for t in others.values())
        graph_key = ("refiner", settings, id(settings.network), addresses)
        ids, key = noise.identify(x, 2, *self.input_range), noise.key.to(x.device)
        zeros = x.new_zeros(len(x), task.size)
        residual = zeros if state is None else state.residuals(clients, like=zeros)
        inputs = [x, y, ids, key, residual, *parameters.values()]
        upload, robust, residual = task.graphs(graph_key, craft, inputs)
        if state is not None:
            state.store(clients, residual)
        return upload, robust
