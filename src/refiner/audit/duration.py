"""How long audits will take, from a few iterations of their attacks and a few uploads of their defences."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from refiner.attacks import Attack, LearnedReconstruction
from refiner.attacks.learning.network_training import TrainingSettings, TrainingState
from refiner.attacks.stages.restoration import train_restorer
from refiner.attacks.stages.wrapped_attack import WrappedAttack
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.from_robust import RobustEstimation
from refiner.audit.plan import Plan
from refiner.audit.seeds import VICTIMS
from refiner.audit.uploads import simulator, uploads
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense

# Victims whose attack is timed on a CPU: one alone takes as long as several at once. On a GPU all are timed.
_TIMED_VICTIMS = 32
# Public images that a training is timed with, at least.
_TIMED_IMAGES = 256
# Uploads that are timed first, and if these are quick.
_FIRST_UPLOADS, _TIMED_UPLOADS = 2, 32
# If one iteration or upload takes longer than this, it is not repeated.
_ENOUGH_SECONDS = 2.0
# A run that takes longer is pointed out, and the scale offered that takes so long.
_LONG_SECONDS, _SHORT_SECONDS = 1800.0, 600.0
_LEAST_VICTIMS, _LEAST_ITERATIONS = 4, 50
# Iterations, of all victims together, that take about a minute on a CPU.
_MANY_ITERATIONS = 20_000


@dataclass(frozen=True)
class Duration:
    """About how long audits will take.

    >>> Duration(16, 4000, attacking=95000.0).text
    'about 26 h; --victims 4 --iterations 101 would take about 10 min'
    >>> Duration(16, 4000, attacking=95.0).text
    'about 2 min'
    >>> Duration(2, 4000, attacking=40.0, public=10400.0, learning=120.0).text
    'about 2.9 h; --victims 2 --iterations 183 would take about 10 min'
    """

    victims: int
    """Clients that are attacked."""
    iterations: int
    """The most iterations of an attack; 0 if none iterates."""
    attacking: float
    """The seconds of all iterations on victims, and on images that attacks are tuned on."""
    public: float = 0.0
    """The seconds of all iterations on public images, as a denoiser needs them."""
    learning: float = 0.0
    """The seconds in which uploads are simulated and networks learn from them."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.attacking + self.public + self.learning

    @property
    def is_long(self) -> bool:
        """Whether it is longer than one would wait for."""
        return self.seconds > _LONG_SECONDS

    @property
    def text(self) -> str:
        """The time, and what could be run instead if it is long."""
        text = f"about {time_text(self.seconds)}"
        if not self.is_long or not self.iterations:
            return text
        victims = min(self.victims, _LEAST_VICTIMS)
        one = (self.public + self.attacking * victims / self.victims) / self.iterations
        least = min(self.iterations, _LEAST_ITERATIONS)
        iterations = min(self.iterations, max(least, int((_SHORT_SECONDS - self.learning) / one)))
        shorter = self.learning + one * iterations
        return f"{text}; --victims {victims} --iterations {iterations} would take about {time_text(shorter)}"


def may_take_long(plans: Sequence[Plan]) -> bool:
    """Return whether audits may take more than a minute, as an estimate itself takes seconds."""
    iterations = 0
    for plan in plans:
        attack, further = _iterating(plan)
        iterations += (len(plan.y) + further) * _iterations(attack)
        iterations += 0 if plan.tuning is None else _tuning_iterations(plan)
        if isinstance(attack, LearnedReconstruction) or plan.robust_estimation is not None:
            return True
    return iterations > _MANY_ITERATIONS


def estimate_duration(plans: Sequence[Plan]) -> Duration:
    """Return about how long the attacks of these plans will take.

    Args:
        plans: The audits, of the same victims and model.

    Returns:
        The estimate. Metrics, the defences' own uploads and what a denoiser learns are left out: they are
        quick beside an attack.
    """
    known: dict[str, float] = {}

    def once(key: object, measure: Callable[[], float]) -> float:
        if (name := repr(key)) not in known:
            known[name] = measure()
        return known[name]

    attacking = public = learning = 0.0
    most = 0
    for plan in plans:
        attack, further = _iterating(plan)
        iterations, settings = _iterations(attack), (attack.name, attack.settings())
        if iterations:
            one = once(("iteration", settings), partial(_seconds_of_an_iteration, plan, attack))
            tuned = 0 if plan.tuning is None else _tuning_iterations(plan)
            attacking += one * (len(plan.y) * iterations + tuned) / plan.protocol.summed_clients
            public += one * further * iterations
            most = max(most, iterations)
        if plan.attacker_images is None:
            continue
        images = len(plan.attacker_images.images)
        if isinstance(attack, LearnedReconstruction):
            train = partial(_seconds_of_training, plan, attack, plan.attacker_images)
            learning += once(("training", settings), train)
        if plan.robust_estimation is not None:
            estimate = partial(_seconds_of_an_estimation, plan, plan.robust_estimation)
            learning += images * once(("estimation", plan.robust_estimation), estimate)
        upload = partial(_seconds_of_an_upload, plan.task, plan.defense, plan)
        learning += _simulated_clients(plan) * once(("upload", plan.defense_name), upload)
    return Duration(len(plans[0].y), most, attacking, public, learning)


def _iterating(plan: Plan) -> tuple[Attack, int]:
    """The attack inside of all stages, and how many observations of public images it attacks, too."""
    attack, further = plan.attack, 0
    while isinstance(attack, WrappedAttack):
        if attack.reconstructs_public_images and plan.attacker_images is not None:
            further += attack.stage_uploads(len(plan.attacker_images.images), _samples(plan))
        attack = attack.attack
    return attack, further


def _samples(plan: Plan) -> int:
    """The samples of one observation: a batch, or the batches of all clients of a sum."""
    return plan.protocol.observations(*plan.y.shape)[1]


def _simulated_clients(plan: Plan) -> int:
    """How many uploads of single clients the attacker simulates."""
    assert plan.attacker_images is not None
    images, observations = len(plan.attacker_images.images), 0
    if plan.attack.learns_from_public_images(plan.task):
        observations += plan.attack.simulated_uploads(images, _samples(plan)) * plan.attack.rounds
    if plan.robust_estimation is not None:
        observations += plan.robust_estimation.draws * images // _samples(plan)
    return observations * plan.protocol.summed_clients


def _iterations(attack: Attack) -> int:
    count = attack.settings().get("iterations")
    return count if isinstance(count, int) else 0


def _seconds_of_an_iteration(plan: Plan, iterating: Attack) -> float:
    """The time of one iteration on one victim, without what happens once."""
    rows = slice(0, None if plan.x.is_cuda else _TIMED_VICTIMS)
    x, y = plan.protocol.observed(plan.x)[rows], plan.protocol.observed(plan.y)[rows]
    observation = uploads(plan.task, NoDefense(), x, y, labels=plan.threat.labels, seed=plan.seed + VICTIMS)[
        1
    ]

    def seconds(iterations: int) -> float:
        attack = replace(iterating, **{"iterations": iterations})
        start = time.perf_counter()
        attack.reconstruct(observation, threat=plan.threat)
        return time.perf_counter() - start

    first = seconds(1)
    if first > _ENOUGH_SECONDS:
        return first / len(y)
    one, eleven = seconds(1), seconds(11)
    return max(eleven - one, 1e-6) / (10 * len(y))


def _seconds_of_training(plan: Plan, attack: LearnedReconstruction, pool: AttackerImages) -> float:
    """The time that the network takes to learn, from one epoch more on a few images."""
    count = max(_TIMED_IMAGES, 16 * plan.y.shape[1])
    few = AttackerImages(pool.images[:count], pool.labels[:count], pool.source)
    simulate = simulator(plan.task, NoDefense(), few)
    x, y = plan.x[:1], plan.y[:1]
    _, observation = uploads(plan.task, NoDefense(), x, y, labels=plan.threat.labels, seed=VICTIMS)

    def seconds(epochs: int) -> float:
        start = time.perf_counter()
        short = replace(attack, epochs=epochs)
        short.reconstruct(observation, threat=plan.threat, seed=plan.seed, simulator=simulate)
        return time.perf_counter() - start

    one, two = seconds(1), seconds(2)
    return max(two - one, 1e-6) * attack.epochs * len(pool.images) / len(few.images)


def _seconds_of_an_estimation(plan: Plan, estimation: RobustEstimation) -> float:
    """The time that the network for robust data takes to learn from one public image, in all epochs."""
    draws = torch.Generator().manual_seed(plan.seed)
    images = torch.rand(estimation.batch + 1, *plan.task.input_shape, generator=draws).to(plan.x.device)

    def seconds(epochs: int) -> float:
        start = time.perf_counter()
        train_restorer(
            images.flip(0),
            images,
            torch.zeros(len(images), dtype=torch.long, device=images.device),
            classes=1,
            held_out=1,
            width=estimation.width,
            settings=TrainingSettings(epochs, estimation.batch, estimation.lr),
            seed=0,
            state=TrainingState(None, {}),
        )
        return time.perf_counter() - start

    seconds(1)  # What is loaded or chosen at the first call counts once.
    one, two = seconds(1), seconds(2)
    return max(two - one, 1e-6) * estimation.epochs * estimation.draws / estimation.batch


def _seconds_of_an_upload(task: Task, defense: Defense, plan: Plan) -> float:
    """The time that the attacker takes to simulate the upload of one client."""

    def seconds(victims: int) -> float:
        start = time.perf_counter()
        uploads(task, defense, plan.x[:victims], plan.y[:victims], labels=False, seed=plan.seed + VICTIMS)
        return time.perf_counter() - start

    first = seconds(_FIRST_UPLOADS)
    if first > _ENOUGH_SECONDS:
        return first / min(_FIRST_UPLOADS, len(plan.y))
    # Many at once are quicker than one by one, and what the first call loads counts once.
    count = min(_TIMED_UPLOADS, len(plan.y))
    return seconds(count) / count


def _tuning_iterations(plan: Plan) -> int:
    """How many iterations, of all clients together, the attack's tuning takes."""
    assert plan.tuning is not None
    grid = plan.tuning.grid(plan.attack)
    return len(plan.tuning.y) * int(sum(point.get("iterations", 0) for point in grid))


def time_text(seconds: float) -> str:
    """Seconds as text in one unit.

    >>> [time_text(seconds) for seconds in (8, 95, 5000, 300000)]
    ['8 s', '2 min', '1.4 h', '3.5 days']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.2g} h" if seconds < 48 * 3600 else f"{seconds / 86400:.2g} days"
