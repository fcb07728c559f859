"""The plan of a search for a defence: which candidates, attacks, victims and iterations a budget allows."""

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from refiner import checks
from refiner.attacks import attack_with_iterations
from refiner.audit.duration import time_text
from refiner.errors import DataError
from refiner.files import file_error, write_atomically
from refiner.recommendation.candidates import check_candidates
from refiner.recommendation.target import Target

FORMAT = "refiner-search-plan-1"
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
        asked: The defences and attacks among which the budget chose; empty if it did not.
        public_images: How many images attacks learn from; None for all.
        spare: How many candidates that were left behind are measured, too, if no finalist will do; None for
            as many as it takes.
        scaled_down: What the budget did not allow, in words.

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
    asked: tuple[str, ...] = ()
    public_images: int | None = None
    spare: int | None = None
    scaled_down: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_candidates(self.candidates)
        checks.integer("batch", self.batch, 1)
        checks.integer("tuning_victims", self.tuning_victims, 0)
        checks.integer("training_rounds", self.training_rounds, 0)
        checks.number("lr", self.lr, 0, above=True)
        checks.integer("seed", self.seed, 0, 2**31)
        checks.number("budget", self.budget, 0, above=True)
        for name in ("public_images", "spare"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 0)
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
        iterates = any(_iterates(name) for name in self.attacks)
        rungs = ", then ".join(
            f"{rung.candidates} defences on {rung.victims} clients"
            + (f" with {rung.iterations:,} iterations" if iterates else "")
            for rung in self.rungs
        )
        is_tuned = self.tuning_victims and iterates
        tuning = f", tuned on {self.tuning_victims} others at the end" if is_tuned else ""
        training = f", and trainings of {self.training_rounds:,} rounds" if self.training_rounds else ""
        scaled = f"; scaled down to the budget: {', '.join(self.scaled_down)}" if self.scaled_down else ""
        time = f"about {time_text(self.seconds)}{training}"
        return f"attacks {', '.join(self.attacks)}: {rungs}{tuning}; {time}{scaled}"

    def is_for(self, **question: object) -> bool:
        """Return whether it was made for a question: for these values of its fields."""
        return all(getattr(self, name) == value for name, value in question.items())

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
            required = {f.name for f in fields(cls) if f.default is MISSING}
            if not required <= set(record) <= known:
                raise ValueError(f"its fields are not {', '.join(sorted(known))}")
            record["rungs"] = tuple(Rung(**rung) for rung in record["rungs"])
            record["target"] = Target(**record["target"])
            names = {"candidates", "attacks", "asked", "scaled_down"} & set(record)
            record |= {name: tuple(map(str, record[name])) for name in names}
            return cls(**record)
        except OSError as error:
            raise file_error(path, f"not a search plan ({error.strerror})", expected) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise file_error(path, f"not a search plan ({reason})", expected) from error


def _iterates(attack: str) -> bool:
    one, two = (attack_with_iterations(attack, count).settings() for count in (1, 2))
    return one != two
