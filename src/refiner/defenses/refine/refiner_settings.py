"""The settings of Refiner: the paper's names where it has one, each with its range."""

from dataclasses import dataclass, field, fields

from refiner import checks
from refiner.core.input_range import UNIT_RANGE, InputRange, check_input_range
from refiner.core.task import Task
from refiner.defenses.refine.privacy import PRIVACY_METRICS
from refiner.defenses.refine.solver import SOLVERS
from refiner.errors import DataError, SettingError
from refiner.evaluation.network import EvaluationNetwork

STARTS = ("blend", "centred", "natural")
SEARCHES = ("never", "batches", "always")
# Without a search they have no effect.
SEARCH_SETTINGS = (
    "beta",
    "iterations",
    "min_search_batch",
    "radius",
    "solver",
    "step",
    "element_power",
    "relative",
    "tau",
    "privacy",
    "epsilon_relative",
)
# Metadata of a field that stays on the client and is not part of an Update.
PRIVATE = {"private": True}


@dataclass(frozen=True)
class RefinerSettings:
    """The settings of `Refiner`; docs/results/learned.md says how the defaults were chosen.

    >>> RefinerSettings(tau=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: tau = 2: expected a number in [0, 1]
    """

    alpha: float = 3.0
    """Blend factor α of the start; with "centred" the width of the noise and with "natural" its strength s,
    in standard deviations of natural images: both may exceed 1."""
    beta: float = 0.0
    """Balance factor β: the weight of PM relative to UM. The evaluation network was trained on uniform noise
    and can't judge shaped noise: with `start="natural"` β must be 0."""
    privacy: str = "network"
    """PM: the noise ratio predicted by the evaluation "network", or "mse", the paper's ablation."""
    iterations: int = 24
    """ι, in units of one gradient of the objective."""
    tau: float = 0.95
    """Decay factor τ of the layer weight."""
    epsilon: float | None = None
    """Projection radius ε; None for no projection."""
    epsilon_relative: bool = False
    """Whether ε is relative to the norm of the real gradient."""
    start: str = "natural"
    """"blend" as in the paper, "centred", or "natural": x + α·n with n shaped like natural images,
    plus a white part."""
    white: float = 0.8
    """With `start="natural"`: the standard deviation of a white part of n in a pixel, in units of the range;
    as all of n it is multiplied by α. It hides what tells images apart at high frequencies, of which natural
    images have little; 0 for none. Chosen for 32×32 pixels: larger images need more of it."""
    statistics: str | None = field(default=None, metadata=PRIVATE)
    """File with the statistics of the noise, from `refiner noise fit`; None for the bundled ones."""
    search: str = "batches"
    """When the noisy images are moved towards the batch's real gradient, the search. "never": every upload is
    the gradient of x + noise and reveals no more than that, however many there are; the real gradient is not
    computed, and settings of the search are refused. "batches": in batches of `min_search_batch` samples and
    more. "always": as in the paper."""
    min_search_batch: int = 16
    """The smallest batch in which `search="batches"` searches."""
    radius: float | None = 1.0
    """With `start="natural"`: the search changes every frequency of an image by less than this many standard
    deviations of n, beside α of noise; None for no limit."""
    search_budget: int | None = None
    """How many uploads of a sample may be searched, over all trainings of a state (`init_state`); None
    for no limit. A sample that has spent it counts as its noisy self: in later uploads there is no more of it
    than without a search. Needs `error_feedback=False`. A server that makes up models needs a handful of
    searched uploads only: from such a server `search="never"` protects."""
    error_feedback: bool = True
    """Whether what a match leaves over is added to the target of the client's next batch, so that errors do
    not add up over a training. Needs a state (`init_state`) where a batch is searched."""
    solver: str = "lbfgs"
    """"descent" as in the paper, or "lbfgs", which converges and never gets worse."""
    step: float = 1.0
    """Learning rate of "descent"."""
    element_power: float = 0.0
    """Power of the element weight |g·θ|: 1 is the paper's equation, ½ its text except for τ, 0 for none."""
    relative: bool = True
    """Whether UM is relative to its value for a zero gradient; the paper's raw UM is of the order 1e-7."""
    warm_start: bool = False
    """Start from the robust data of earlier rounds, found by the image and, if given, its id, and halve ι
    for a batch that is known completely, as in the paper. Needs a state (`init_state`). Twice as fast; but a
    batch is matched as one, and with every round its samples' own gradients come closer to the real ones:
    the protection of a single sample decreases."""
    clamp: bool = False
    """Clamp robust data to `input_range` after the search."""
    input_range: InputRange = UNIT_RANGE
    """The smallest and the largest value of an input, or those of every channel:
    `((l1, l2, l3), (h1, h2, h3))`."""
    chunk: int | None = field(default=None, metadata=PRIVATE)
    """Number of victims that are solved at a time; None for all."""
    network: EvaluationNetwork | None = field(default=None, repr=False, compare=False, metadata=PRIVATE)
    """The evaluation network; None for the bundled one."""
    secret: bytes | None = field(default=None, repr=False, compare=False, metadata=PRIVATE)
    """32 bytes that key the noise; None draws them from the operating system, once for every `Refiner`. Keep
    one `Refiner` for a whole training, or store a secret, and keep `start`, `alpha`, `white` and
    `statistics`: otherwise the noise of an image changes between uploads and can be averaged out."""
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
        checks.choice("search", self.search, SEARCHES)
        checks.integer("min_search_batch", self.min_search_batch, 1)
        checks.number("white", self.white, 0, 100)
        if self.radius is not None:
            checks.number("radius", self.radius, 0, 100, above=True)
        if self.search_budget is not None:
            checks.integer("search_budget", self.search_budget, 0)
        checks.flag("error_feedback", self.error_feedback)
        checks.flag("warm_start", self.warm_start)
        checks.integer("memory_size", self.memory_size, 1)
        checks.flag("clamp", self.clamp)
        check_input_range(self.input_range)
        if self.chunk is not None:
            checks.integer("chunk", self.chunk, 1)
        if self.secret is not None and (not isinstance(self.secret, bytes) or len(self.secret) != 32):
            raise SettingError(
                f"secret = ({type(self.secret).__name__}, not shown): expected 32 bytes",
                field="secret",
                expected="32 bytes",
            )
        if self.statistics is not None and not isinstance(self.statistics, str):
            raise checks.wrong("statistics", self.statistics, "the path of a file or None")
        self._check_combinations()
        if self.network is not None and not isinstance(self.network, EvaluationNetwork):
            raise checks.wrong("network", self.network, "an EvaluationNetwork or None")

    def searches(self, batch: int) -> bool:
        """Whether batches of `batch` samples are searched; depends on nothing else."""
        return self.search == "always" or (self.search == "batches" and batch >= self.min_search_batch)

    def _check_combinations(self) -> None:
        """Raise for settings that contradict each other."""
        natural = self.start == "natural"
        changed = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        self._require("epsilon", self.epsilon is None or self.search == "always", "search = 'always'")
        self._require("error_feedback", not self.error_feedback or self.epsilon is None, "epsilon = None")
        self._require(
            "warm_start",
            not self.warm_start or not (natural or self.error_feedback or self.search != "always"),
            "search = 'always', another start than 'natural' and error_feedback = False",
        )
        # What a match leaves over would carry a spent sample's gradient into later uploads.
        self._require(
            "search_budget",
            self.search_budget is None
            or not (self.warm_start or self.error_feedback or self.search == "never"),
            "a search, warm_start = False and error_feedback = False",
        )
        shaped = "start = 'natural'"
        self._require(
            "beta", not (self.beta and natural), "start = 'blend' or 'centred': D can't judge shaped noise"
        )
        self._require("statistics", natural or self.statistics is None, shaped)
        self._require("white", natural or not self.white or "white" not in changed, shaped)
        self._require("radius", natural or self.radius is None or "radius" not in changed, shaped)
        if self.search == "never":
            for name in SEARCH_SETTINGS:
                self._require(name, name not in changed, "a search")

    def _require(self, name: str, holds: bool, condition: str) -> None:
        if not holds:
            problem = f"possible only with {condition}"
            raise SettingError(field=name, value=getattr(self, name), expected=condition, problem=problem)

    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value of what is computed with: 0..1 if each channel has a range."""
        low, high = self.input_range
        return UNIT_RANGE if isinstance(low, tuple) or isinstance(high, tuple) else (low, high)

    def check_data(self, task: Task, low: float, high: float) -> None:
        """Raise if data with values in low..high does not fit these settings, a range per channel aside."""
        limits = self.limits()
        if low < limits[0] or high > limits[1]:
            raise DataError(
                f"x in [{low:.4g}, {high:.4g}], outside input_range = {self.input_range}: "
                "noise of that range would hide too little; set input_range",
                field="x",
                expected=f"values in {self.input_range}",
            )
        level = (limits[1] - limits[0]) / 255
        if 0 < high - low < 0.9 * level:
            raise DataError(
                f"x in [{low:.4g}, {high:.4g}]: less than one of the 256 levels of input_range = "
                f"{self.input_range}, by which images are told apart; set input_range",
                field="x",
                expected=f"values that fill {self.input_range}",
            )
        if self.beta and self.privacy == "network":
            EvaluationNetwork.check_shape(task.input_shape)
