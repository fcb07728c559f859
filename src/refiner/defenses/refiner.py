"""Refiner: upload the gradient of robust data that looks like noise and trains like the real data (Section 3)."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from refiner import checks
from refiner.core.capture import Captured
from refiner.core.gradients import Gradients, directional, flatten, gradients, unflatten
from refiner.core.noise import NoiseSource, uniform
from refiner.core.precision import tensor_float32
from refiner.core.task import Parameters, Task
from refiner.defenses.base import Batch, Defense
from refiner.defenses.refine.memory import Memory
from refiner.defenses.refine.privacy import noise_share
from refiner.defenses.refine.projection import project
from refiner.defenses.refine.problem import Curved, Straight
from refiner.defenses.refine.solver import SOLVERS, solve
from refiner.defenses.refine.start import STARTS, start
from refiner.defenses.refine.utility import utility
from refiner.errors import DataError
from refiner.evaluation.network import EvaluationNetwork

GRANULARITIES = ("batch", "sample")
UPLOADS = ("curved", "straight")


@dataclass(frozen=True)
class Refiner(Defense):
    """The paper's defence; the defaults are the best that this project can show, `Refiner.paper()` the paper's.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(2, 3, 32, 32), torch.tensor([3, 5])
    >>> Refiner(iterations=1).protect(Task(LeNet(), example=x), x, y)
    Update(refiner, victims=1, samples=2, parameters=8)
    >>> Refiner(tau=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: tau = 2: expected a number in [0, 1]
    """

    name: ClassVar[str] = "refiner"

    alpha: float = 2.2
    """Blend factor α of the start; with `start="centred"` the width of the noise, which may exceed 1."""
    beta: float = 1.0
    """Balance factor β: how much PM counts beside UM."""
    iterations: int = 10
    """ι, in units of one gradient of the objective."""
    tau: float = 0.95
    """Decay factor τ of the layer weight."""
    epsilon: float | None = None
    """Projection radius ε; None projects nothing."""
    epsilon_relative: bool = False
    """Whether ε is a share of the real gradient's length."""
    start: str = "centred"
    """"blend" as in the paper, or "centred"."""
    solver: str = "conjugate"
    """"descent" as in the paper, "adam", "signed" or "conjugate"."""
    step: float = 1.0
    """Learning rate of the first three solvers."""
    element_power: float = 0.0
    """Power of the element weight |g·θ|: 1 is the paper's equation, ½ its sentence, 0 switches it off."""
    relative: bool = True
    """Whether UM is a share of its value for a zero gradient; the paper's raw UM is of the order 1e-7."""
    floor: float = 0.43
    """Relative gradient distance at which the match ends, since a nearer one shows the picture; 0 for none.
    For a batch it is divided by √B, as the errors of B samples alone would average."""
    granularity: str = "batch"
    """Match the gradient of each "batch" as one, or of each "sample" alone and upload the mean."""
    upload: str = "straight"
    """Upload the gradient of robust data itself ("curved", the paper's), or its first-order part ("straight")."""
    random_sign: bool = False
    """Upload g ± (g* − g) with a random sign, which has no mean error."""
    warm_start: bool = False
    """Begin with the robust data of earlier rounds, by sample id, and halve ι."""
    clamp: bool = False
    """Keep robust data within `input_range` after the search."""
    input_range: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest value of an input."""
    chunk: int | None = None
    """How many victims are solved at a time; None for all."""
    network: EvaluationNetwork | None = field(default=None, repr=False, compare=False)
    """The evaluation network; None for the one that comes with refiner."""
    secret: bytes | None = field(default=None, repr=False, compare=False)
    """32 bytes that key the noise of known samples; None draws them from the operating system."""
    remember: int = field(default=10_000, repr=False, compare=False)
    """How many samples the warm start keeps in memory."""
    _memory: Memory = field(init=False, repr=False, compare=False)
    _source: NoiseSource = field(init=False, repr=False, compare=False)
    _captured: Captured = field(init=False, repr=False, compare=False, default_factory=Captured)

    def __post_init__(self) -> None:
        checks.choice("start", self.start, STARTS)
        checks.number("alpha", self.alpha, 0, 1 if self.start == "blend" else 100)
        checks.number("beta", self.beta, 0, 1e6)
        checks.integer("iterations", self.iterations, 0, 10_000)
        checks.number("tau", self.tau, 0, 1)
        if self.epsilon is not None:
            checks.number("epsilon", self.epsilon, 0)
        checks.flag("epsilon_relative", self.epsilon_relative)
        checks.choice("solver", self.solver, SOLVERS)
        checks.number("step", self.step, 0, 1e6, above=True)
        checks.number("element_power", self.element_power, 0, 2)
        checks.flag("relative", self.relative)
        checks.number("floor", self.floor, 0, 10)
        checks.choice("granularity", self.granularity, GRANULARITIES)
        checks.choice("upload", self.upload, UPLOADS)
        checks.flag("random_sign", self.random_sign)
        checks.flag("warm_start", self.warm_start)
        checks.flag("clamp", self.clamp)
        _check_range(self.input_range)
        if self.chunk is not None:
            checks.integer("chunk", self.chunk, 1)
        checks.integer("remember", self.remember, 1)
        if self.network is not None and not isinstance(self.network, EvaluationNetwork):
            raise checks.wrong("network", self.network, "an EvaluationNetwork or None")
        object.__setattr__(self, "_memory", Memory(self.remember))
        object.__setattr__(self, "_source", NoiseSource(self.secret))

    @classmethod
    def paper(cls, *, alpha: float = 0.5, epsilon: float | None = 0.1, iterations: int = 10) -> Self:
        """The paper to the letter: blended start, plain descent with step 1, raw weights, ε = 0.1."""
        return cls(
            alpha=alpha,
            iterations=iterations,
            epsilon=epsilon,
            start="blend",
            solver="descent",
            element_power=1.0,
            relative=False,
            floor=0.0,
            upload="curved",
        )

    def refine(
        self, task: Task, x: Tensor, y: Tensor, *, ids: Tensor | None = None, seed: int | None = None
    ) -> Tensor:
        """Robust data for `x [V, B, *input]`, to look at: it stays on the client.

        >>> from refiner.models import LeNet
        >>> x, y = torch.rand(1, 2, 3, 32, 32), torch.tensor([[3, 5]])
        >>> Refiner(iterations=1).refine(Task(LeNet(), example=x[0]), x, y, seed=0).shape
        torch.Size([1, 2, 3, 32, 32])
        """
        noise = self._source if seed is None else NoiseSource(seed=seed)
        _, robust = self._craft_all(task, Batch(x, y, ids, noise))
        return robust

    def _noise(self) -> NoiseSource:
        return self._source

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        upload, _ = self._craft_all(task, batch)
        return unflatten(task, upload)

    def _craft_all(self, task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
        """Uploads `[V, N]` and robust data `[V, B, *input]`, a chunk of victims at a time."""
        victims, size = batch.x.shape[:2]
        x, y, ids = batch.x, batch.y, self._ids(batch)
        if self.granularity == "sample":
            x, y, ids = (t.flatten(0, 1)[:, None] for t in (x, y, ids))
        size_of_chunk = self.chunk or len(x)
        parts = [
            self._craft_chunk(task, batch.noise, *part)
            for part in zip(
                x.split(size_of_chunk), y.split(size_of_chunk), ids.split(size_of_chunk), strict=True
            )
        ]
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
        known = None
        if self.warm_start and len(self._memory):
            found, earlier = self._memory.recall(ids.flatten())
            if bool(found.all()):
                return earlier.view_as(x), -(-self.iterations // 2)
            known = found.view(*ids.shape, *(1 for _ in x.shape[2:]))

        def blend(x: Tensor, ids: Tensor, key: Tensor) -> tuple[Tensor]:
            drawn = uniform(key, ids, tuple(x.shape[2:]), x.dtype)
            return (start(self.start, x, drawn, self.alpha, *self.input_range),)

        (begin,) = self._captured("begin", blend, [x, ids, noise.key.to(x.device)])
        return (begin if known is None else torch.where(known, earlier.view_as(x), begin)), self.iterations

    def _craft_chunk(
        self, task: Task, noise: NoiseSource, x: Tensor, y: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        begin, iterations = self._begin(x, ids, noise)
        sign = x.new_ones(len(x))
        if self.random_sign:
            # A stream of its own: ids of samples use the positive numbers, fresh ones the small negative.
            sign = 1 - 2 * (noise.uniform(ids[:, 0] ^ (1 << 62), (1,), x.dtype)[:, 0] < 0.5).to(x.dtype)
        parameters = task.parameters()

        def craft(x: Tensor, y: Tensor, begin: Tensor, sign: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            return self._craft(
                task, dict(zip(task.names, values, strict=True)), x, y, begin, sign, iterations
            )

        upload, robust = self._captured(
            (id(task), iterations), craft, [x, y, begin, sign, *parameters.values()]
        )
        if self.warm_start:
            self._memory.store(ids.flatten(), robust.flatten(0, 1))
        return upload, robust

    def _craft(
        self,
        task: Task,
        parameters: Parameters,
        x: Tensor,
        y: Tensor,
        begin: Tensor,
        sign: Tensor,
        iterations: int,
    ) -> tuple[Tensor, Tensor]:
        """Equation 2 and the projection for one chunk, a pure function of its tensors."""

        def gradient(data: Tensor) -> Tensor:
            return flatten(gradients(task, data, y, parameters=parameters))

        def push(move: Tensor) -> Tensor:
            return flatten(directional(task, x, y, move, parameters=parameters)[1])

        network = EvaluationNetwork.bundled(x.device) if self.network is None else self.network
        low, high = self.input_range
        point = x.detach().requires_grad_(self.upload == "straight" and iterations > 0)
        with torch.enable_grad(), tensor_float32(False):
            recorded = gradient(point)
        real = recorded.detach()
        kind = partial(Straight, point=point, recorded=recorded) if self.upload == "straight" else Curved
        with tensor_float32(True):
            problem = kind(
                gradient=gradient,
                utility=utility(
                    task, parameters, real, tau=self.tau, element_power=self.element_power, relative=self.relative
                ),
                privacy=lambda data: noise_share(network, data, low, high),
                beta=self.beta,
                floor=self.floor / x.shape[1] ** 0.5,
            )
            reach = 0.5 * (high - low)
            robust = solve(problem, begin, solver=self.solver, iterations=iterations, step=self.step, reach=reach)
        if self.clamp:
            robust = robust.clamp(low, high)
        with tensor_float32(False):
            upload = gradient(robust) if self.upload == "curved" else real + push(robust - x)
        if self.random_sign:
            upload = real + sign[:, None] * (upload - real)
        if self.epsilon is not None:
            radius = self.epsilon * real.norm(dim=1) if self.epsilon_relative else self.epsilon
            upload = project(upload, real, radius)
        return upload, robust


def _check_range(value: tuple[float, float]) -> None:
    expected = "two numbers, the lower first"
    if not isinstance(value, tuple) or len(value) != 2:
        raise checks.wrong("input_range", value, expected)
    low, high = (checks.number("input_range", v, -1e6, 1e6) for v in value)
    if low >= high:
        raise checks.wrong("input_range", value, expected)
