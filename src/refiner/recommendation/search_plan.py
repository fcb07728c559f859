"""The plan of a search for a defence: which candidates, attacks, victims and iterations a budget allows."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from refiner import checks
from refiner.audit.duration import time_text
from refiner.errors import DataError
from refiner.files import file_error, write_atomically
from refiner.recommendation.candidates import check_candidates
from refiner.recommendation.target import Target

FORMAT = "refiner-search-plan-1"
# Victims and iterations of the last rung, from the most to the least thorough.
_SCALES = (
    (64, 4000),
    (64, 2000),
    (48, 1000),
    (32, 1000),
    (32, 500),
    (32, 300),
    (24, 300),
    (16, 200),
    (16, 50),
)
# A rung before the last has so much of its victims and iterations, and so many of the candidates go on.
_EARLIER = ((1 / 4, 1 / 8, 1 / 2), (1 / 2, 1 / 3, 1 / 2))
_LEAST_VICTIMS, _LEAST_ITERATIONS, _LEAST_KEPT = 4, 30, 2
DEFAULT_BUDGET = 600.0


@dataclass(frozen=True)
class Rung:
    """One round of the search."""

    victims: int
    iterations: int
    """Iterations of attacks by optimisation."""
    candidates: int
    """How many defences are measured, at most."""


@dataclass(frozen=True)
class Work:
    """What measuring takes on this machine, in seconds."""

    iteration: float
    """One iteration of all attacks by optimisation on one victim."""
    learning: float
    """What attacks that learn take for one defence, whatever the number of victims."""


@dataclass(frozen=True)
class SearchPlan:
    """Everything that a search depends on besides the model and the data.

    The same plan gives the same recommendation; only the times in it vary.

    Args:
        candidates: The defences, by name with settings.
        attacks: The attacks that are tried without a defence; those that work are used.
        rungs: The rounds of the search. Each measures more thoroughly, and fewer candidates.
        target: What a defence has to achieve.
        batch: The batch size of the training that is to be protected.
        tuning_victims: Clients on which attacks are tuned in the last rung; 0 for no tuning.
        training_rounds: Rounds of the short trainings that measure PMM; 0 for none.
        lr: Their learning rate.
        seed: Seed of everything random.
        budget: The seconds that the plan was made for.
        seconds: About how long it takes on the machine that it was made on, without the short trainings.

    Raises:
        RefinerError: A value is out of range.
    """

    candidates: tuple[str, ...]
    attacks: tuple[str, ...]
    rungs: tuple[Rung, ...]
    target: Target
    batch: int
    tuning_victims: int
    training_rounds: int
    lr: float
    seed: int
    budget: float
    seconds: float

    def __post_init__(self) -> None:
        check_candidates(self.candidates)
        checks.integer("batch", self.batch, 1)
        checks.integer("tuning_victims", self.tuning_victims, 0)
        checks.integer("training_rounds", self.training_rounds, 0)
        checks.number("lr", self.lr, 0, above=True)
        checks.integer("seed", self.seed, 0, 2**31)
        checks.number("budget", self.budget, 0, above=True)
        for rung in self.rungs:
            checks.integer("victims", rung.victims, 1)
            checks.integer("iterations", rung.iterations, 1)
            checks.integer("candidates", rung.candidates, 1)
        if not self.rungs or not self.attacks:
            raise DataError(field="plan", value=self.rungs, expected="at least one rung and one attack")

    @property
    def victims(self) -> int:
        """The most victims that a rung needs."""
        return max(rung.victims for rung in self.rungs)

    @property
    def text(self) -> str:
        """The plan in one sentence."""
        rungs = ", then ".join(
            f"{rung.candidates} defences on {rung.victims} clients with {rung.iterations:,} iterations"
            for rung in self.rungs
        )
        tuning = f", tuned on {self.tuning_victims} others at the end" if self.tuning_victims else ""
        training = f", and trainings of {self.training_rounds:,} rounds" if self.training_rounds else ""
        over = ", more than the budget" if self.seconds > self.budget else ""
        time = f"about {time_text(self.seconds)}{over}{training}"
        return f"attacks {', '.join(self.attacks)}: {rungs}{tuning}; {time}"

    def is_for(self, other: "SearchPlan") -> bool:
        """Return whether both were made for the same question; rungs and times may differ."""
        asked = ("candidates", "target", "batch", "training_rounds", "lr", "seed", "budget")
        return all(getattr(self, name) == getattr(other, name) for name in asked)

    def save(self, path: Path) -> Path:
        """Write the plan as JSON."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        return write_atomically(path, f"{text}\n".encode())

    @classmethod
    def load(cls, path: Path) -> "SearchPlan":
        """Return the plan that `save` wrote.

        Raises:
            DataError: The file is missing or is no such plan.

        >>> SearchPlan.load(Path("absent.json"))
        Traceback (most recent call last):
        refiner.errors.DataError: absent.json: not a search plan (No such file or directory)
        """
        expected = "a plan of refiner recommend"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("format", None) != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            known = {f.name for f in fields(cls)}
            if set(record) != known:
                raise ValueError(f"its fields are not {', '.join(sorted(known))}")
            record["rungs"] = tuple(Rung(**rung) for rung in record["rungs"])
            record["target"] = Target(**record["target"])
            record |= {name: tuple(map(str, record[name])) for name in ("candidates", "attacks")}
            return cls(**record)
        except OSError as error:
            raise file_error(path, f"not a search plan ({error.strerror})", expected) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise file_error(path, f"not a search plan ({reason})", expected) from error


def choose_rungs(
    budget: float, work: Work, *, candidates: int, victims: int, tuning_runs: float
) -> tuple[tuple[Rung, ...], float]:
    """Return the most thorough rungs that a budget allows, and about how many seconds they take.

    Args:
        budget: The seconds to spend.
        work: What measuring takes on this machine.
        candidates: The number of defences.
        victims: The number of clients that there are.
        tuning_runs: How many clients' runs the tuning of one attack amounts to.

    Returns:
        The rungs, and their seconds; the least thorough ones if none fits.

    >>> work = Work(iteration=1e-3, learning=1.0)
    >>> rungs, seconds = choose_rungs(600, work, candidates=10, victims=100, tuning_runs=0)
    >>> [(rung.victims, rung.iterations, rung.candidates) for rung in rungs], round(seconds)
    ([(12, 125, 10), (24, 333, 5), (48, 1000, 3)], 277)
    """
    for most, iterations in _SCALES:
        rungs = _rungs(min(most, victims), iterations, candidates)
        seconds = _seconds(rungs, work, tuning_runs)
        if seconds <= budget:
            break
    return rungs, seconds


def _rungs(victims: int, iterations: int, candidates: int) -> tuple[Rung, ...]:
    rungs, left = [], candidates
    for share, iteration_share, kept in _EARLIER:
        count = max(_LEAST_VICTIMS, round(share * victims))
        steps = max(min(iterations, _LEAST_ITERATIONS), round(iteration_share * iterations))
        rungs.append(Rung(min(count, victims), steps, left))
        left = min(left, max(_LEAST_KEPT, math.ceil(kept * left)))
    return (*rungs, Rung(victims, iterations, left))


def _seconds(rungs: Sequence[Rung], work: Work, tuning_runs: float) -> float:
    seconds = 0.0
    for rung in rungs:
        runs = rung.candidates + 1  # undefended uploads are attacked as well
        victims = rung.victims + (tuning_runs if rung is rungs[-1] else 0)
        seconds += runs * (victims * rung.iterations * work.iteration + work.learning)
    return seconds
