"""The settings of Refiner: the paper's names where it has one, each with its range."""

from dataclasses import dataclass, field

from refiner import checks
from refiner.core.task import Task
from refiner.defenses.refine.initialization import STARTS
from refiner.defenses.refine.privacy import PRIVACIES
from refiner.defenses.refine.solver import SOLVERS
from refiner.errors import DataError, SettingError
from refiner.evaluation.network import EvaluationNetwork

GRANULARITIES = ("batch", "sample")
UPLOADS = ("curved", "straight")
# A field that stays on the client: it is no part of an Update.
PRIVATE = {"private": True}


@dataclass(frozen=True)
class Settings:
    """What Refiner does; the defaults are the best that this project can show.

    >>> Settings(tau=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: tau = 2: expected a number in [0, 1]
    """

    alpha: float = 2.2
    """Blend factor α of the start; with `start="centred"` the width of the noise, which may exceed 1."""
    beta: float = 1.0
    """Balance factor β: how much PM counts beside UM."""
    privacy: str = "network"
    """PM: the evaluation "network"'s share of noise, or "mse", the paper's ablation."""
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
    solver: str = "secant"
    """"descent" as in the paper, "adam", "signed", "conjugate", or "secant", which leaves batches of fewer
    than 16 samples to "conjugate"."""
    step: float = 1.0
    """Learning rate of the first three solvers."""
    element_power: float = 0.0
    """Power of the element weight |g·θ|: 1 is the paper's equation, ½ its sentence but for τ, 0 for none."""
    relative: bool = True
    """Whether UM is a share of its value for a zero gradient; the paper's raw UM is of the order 1e-7."""
    floor: float = 0.4
    """Relative gradient distance at which the match ends, since a nearer one shows the image; below a
    twentieth of it nothing leaves. For a batch it is divided by √B, as the errors of B samples alone would
    average. 0 for none."""
    granularity: str = "batch"
    """Match the gradient of each "batch" as one, or of each "sample" alone and upload the mean."""
    upload: str = "curved"
    """Upload the gradient of robust data ("curved", the paper's), or its first-order part g + J·(x* − x)
    ("straight"): that one has no mean error, but it depends on x as well as on x*, and an attacker who knows
    the form can find both. Use it to study."""
    random_sign: bool = False
    """Upload g ± (g* − g) with a random sign, for single samples: no mean error; weak as "straight" is."""
    warm_start: bool = False
    """Begin with the robust data of earlier rounds, by the image and, if given, its id, and halve ι for a
    batch that is known as a whole. Twice as fast; but a batch is matched as one, and with every round its
    samples' own gradients come nearer to the real ones: what they hide wears off."""
    clamp: bool = False
    """Keep robust data within `input_range` after the search."""
    input_range: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest value of an input."""
    chunk: int | None = field(default=None, metadata=PRIVATE)
    """How many victims are solved at a time; None for all."""
    network: EvaluationNetwork | None = field(default=None, repr=False, compare=False, metadata=PRIVATE)
    """The evaluation network; None for the one that comes with refiner."""
    secret: bytes | None = field(default=None, repr=False, compare=False, metadata=PRIVATE)
    """32 bytes that key the noise; None draws them from the operating system, anew for every `Refiner`. Keep
    one `Refiner` for a whole training, or store a secret, or a known sample does not keep its noise."""
    remember: int = field(default=10_000, metadata=PRIVATE)
    """How many samples the warm start keeps in memory."""

    def __post_init__(self) -> None:
        checks.choice("start", self.start, STARTS)
        limit = 1 if self.start == "blend" else 100
        checks.number(f"alpha (with start = {self.start!r})", self.alpha, 0, limit)
        checks.number("beta", self.beta, 0, 1e6)
        checks.choice("privacy", self.privacy, PRIVACIES)
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
        checks.integer("remember", self.remember, 1)
        if self.secret is not None and (not isinstance(self.secret, bytes) or len(self.secret) != 32):
            raise SettingError(f"secret = ({type(self.secret).__name__}, not shown): expected 32 bytes")
        if self.network is not None and not isinstance(self.network, EvaluationNetwork):
            raise checks.wrong("network", self.network, "an EvaluationNetwork or None")

    def check_data(self, task: Task, low: float, high: float) -> None:
        """Refuse data, by its least and greatest value, that these settings could not hide."""
        if low < self.input_range[0] or high > self.input_range[1]:
            raise DataError(
                f"x lies in [{low:.4g}, {high:.4g}], outside input_range = {self.input_range}: "
                "noise of that range would hide too little; set input_range"
            )
        if self.beta and self.privacy == "network":
            EvaluationNetwork.check(task.input_shape)


def _check_range(value: tuple[float, float]) -> None:
    expected = "two numbers, the lower first"
    if not isinstance(value, tuple) or len(value) != 2:
        raise checks.wrong("input_range", value, expected)
    low, high = (checks.number("input_range", v, -1e6, 1e6) for v in value)
    if low >= high:
        raise checks.wrong("input_range", value, expected)
