"""The settings of Refiner: the paper's names where it has one, each with its range."""

from dataclasses import dataclass, field

from refiner import checks
from refiner.core.task import Task
from refiner.defenses.refine.initialization import STARTS
from refiner.defenses.refine.privacy import PRIVACY_METRICS
from refiner.defenses.refine.solver import SOLVERS
from refiner.errors import DataError, SettingError
from refiner.evaluation.network import EvaluationNetwork

GRANULARITIES = ("batch", "sample")
UPLOADS = ("curved", "straight")
# Metadata of a field that stays on the client and is not part of an Update.
PRIVATE = {"private": True}


@dataclass(frozen=True)
class RefinerSettings:
    """The settings of `Refiner`; the defaults give the best results that this project has measured.

    >>> RefinerSettings(tau=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: tau = 2: expected a number in [0, 1]
    """

    alpha: float = 2.2
    """Blend factor α of the start; with `start="centred"` the width of the noise, which may exceed 1."""
    beta: float = 1.0
    """Balance factor β: the weight of PM relative to UM."""
    privacy: str = "network"
    """PM: the noise ratio predicted by the evaluation "network", or "mse", the paper's ablation."""
    iterations: int = 10
    """ι, in units of one gradient of the objective."""
    tau: float = 0.95
    """Decay factor τ of the layer weight."""
    epsilon: float | None = None
    """Projection radius ε; None for no projection."""
    epsilon_relative: bool = False
    """Whether ε is relative to the norm of the real gradient."""
    start: str = "centred"
    """"blend" as in the paper, or "centred"."""
    solver: str = "secant"
    """"descent" as in the paper, "adam", "signed", "conjugate", or "secant", which uses "conjugate" for
    batches of fewer than 16 samples."""
    step: float = 1.0
    """Learning rate of the first three solvers."""
    element_power: float = 0.0
    """Power of the element weight |g·θ|: 1 is the paper's equation, ½ its text except for τ, 0 for none."""
    relative: bool = True
    """Whether UM is relative to its value for a zero gradient; the paper's raw UM is of the order 1e-7."""
    floor: float = 0.4
    """Relative gradient distance at which the match stops, since a closer one reveals the image; an upload
    closer than a twentieth of it is rejected. For a batch it is divided by √B, as the errors of B
    independent samples would average. 0 for no floor."""
    granularity: str = "batch"
    """Match the gradient of the whole "batch", or of each "sample" by itself and upload the mean."""
    upload: str = "curved"
    """Upload the gradient of robust data ("curved", the paper's), or its first-order part g + J·(x* − x)
    ("straight"): its mean error is zero, but it depends on x as well as on x*, and an attacker who knows the
    form can find both. For studies only."""
    random_sign: bool = False
    """Upload g ± (g* − g) with a random sign, for single samples: zero mean error; as weak as "straight"."""
    warm_start: bool = False
    """Start from the robust data of earlier rounds, found by the image and, if given, its id, and halve ι
    for a batch that is known completely. Needs a state (`init_state`). Twice as fast; but a batch is matched
    as one, and with every round its samples' own gradients come closer to the real ones: the protection of a
    single sample decreases."""
    clamp: bool = False
    """Clamp robust data to `input_range` after the search."""
    input_range: tuple[float, float] = (0.0, 1.0)
    """The smallest and the largest value of an input."""
    chunk: int | None = field(default=None, metadata=PRIVATE)
    """Number of victims that are solved at a time; None for all."""
    network: EvaluationNetwork | None = field(default=None, repr=False, compare=False, metadata=PRIVATE)
    """The evaluation network; None for the bundled one."""
    secret: bytes | None = field(default=None, repr=False, compare=False, metadata=PRIVATE)
    """32 bytes that key the noise; None draws them from the operating system, once for every `Refiner`. Keep
    one `Refiner` for a whole training, or store a secret; otherwise the noise of an image changes between
    uploads and can be averaged out."""
    memory_size: int = field(default=10_000, metadata=PRIVATE)
    """Number of samples that a warm start remembers, at least."""

    def __post_init__(self) -> None:
        checks.choice("start", self.start, STARTS)
        limit = 1 if self.start == "blend" else 100
        checks.number(f"alpha (with start = {self.start!r})", self.alpha, 0, limit)
        checks.number("beta", self.beta, 0, 1e6)
        checks.choice("privacy", self.privacy, PRIVACY_METRICS)
        checks.integer("iterations", self.iterations, 0, 10_000)
        checks.number("tau", self.tau, 0, 1)
        if self.epsilon is not None:
            checks.number("epsilon", self.epsilon, 0, above=True)
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
        checks.integer("memory_size", self.memory_size, 1)
        if self.secret is not None and (not isinstance(self.secret, bytes) or len(self.secret) != 32):
            raise SettingError(
                f"secret = ({type(self.secret).__name__}, not shown): expected 32 bytes",
                field="secret",
                expected="32 bytes",
            )
        if self.network is not None and not isinstance(self.network, EvaluationNetwork):
            raise checks.wrong("network", self.network, "an EvaluationNetwork or None")

    def check_data(self, task: Task, low: float, high: float) -> None:
        """Raise if data with values in low..high does not fit these settings."""
        if low < self.input_range[0] or high > self.input_range[1]:
            raise DataError(
                f"x in [{low:.4g}, {high:.4g}], outside input_range = {self.input_range}: "
                "noise of that range would hide too little; set input_range",
                field="x",
                expected=f"values in {self.input_range}",
            )
        if self.beta and self.privacy == "network":
            EvaluationNetwork.check_shape(task.input_shape)


def _check_range(value: tuple[float, float]) -> None:
    expected = "two numbers, the lower first"
    if not isinstance(value, tuple) or len(value) != 2:
        raise checks.wrong("input_range", value, expected)
    low, high = (checks.number("input_range", v, -1e6, 1e6) for v in value)
    if low >= high:
        raise checks.wrong("input_range", value, expected)
