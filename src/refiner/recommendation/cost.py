"""What attacks take on this machine, from a few iterations, a few uploads and one small audit of each."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from refiner.attacks import LinearReconstruction, attack_with_iterations
from refiner.audit import Plan, Tuning, Victims, estimate_duration
from refiner.audit.run_audit import run_plan
from refiner.core.task import Task
from refiner.errors import RefinerError
from refiner.recommendation.search import TUNING_GRID

TUNING_VICTIMS = 4
_TIMED_ITERATIONS = 1000
# Clients and public images of the small audit; no attack that learns needs more.
_AUDITED, _PUBLIC = 16, 300


@dataclass(frozen=True)
class AttackCost:
    """What one attack takes, in seconds."""

    iteration: float = 0.0
    """One iteration on one client; 0 if it does not iterate."""
    audit: float = 0.0
    """What every audit takes besides: solving, metrics."""
    uploads: Mapping[str, float] = field(default_factory=dict)
    """To simulate the upload of one public image, by defence; empty if the attack does not learn."""
    tuning_runs: float = 0.0
    """How many clients' runs its tuning amounts to."""
    public_runs: int = 0
    """How many public clients every audit attacks, too, as a denoiser needs them."""
    iterations: int | None = None
    """Its iterations, where its name fixes them; None if it has those of a rung."""


def measure_costs(
    task: Task, images: Victims, candidates: Sequence[str], attacks: Sequence[str], seed: int
) -> dict[str, AttackCost]:
    """Return what each attack takes on undefended uploads and on those of every candidate.

    What a network takes to train, as that of `learned`, is not measured.

    Args:
        task: The model and its loss.
        images: The clients to attack, and images to learn from.
        candidates: The defences, by name with settings.
        attacks: The attacks, by name with settings.
        seed: Seed of everything random.

    Returns:
        The costs by attack; attacks that do not apply are left out.
    """
    device = next(iter(task.parameters().values())).device
    x, y = images.x.to(device), images.y.to(device)
    pool = None if images.pool is None else (images.pool[0][:_PUBLIC], images.pool[1][:_PUBLIC])
    costs = {}
    for name in attacks:
        attack = attack_with_iterations(name, _TIMED_ITERATIONS)
        try:
            plan = Plan.of(task, x, y, defense="none", attack=attack, pool=pool, metrics=[], seed=seed)
        except RefinerError:
            continue  # the search says why
        # Iterations in the name take precedence.
        timed = int(str(attack.settings().get("iterations", _TIMED_ITERATIONS)))
        is_fixed = attack.settings() == attack_with_iterations(name, 1).settings()
        iteration = tuning_runs = 0.0
        public_runs = 0
        uploads = {}
        if plan.attacker_images is not None:
            for defense in ("none", *candidates):
                try:
                    plan = Plan.of(
                        task, x, y, defense=defense, attack=attack, pool=pool, metrics=[], seed=seed
                    )
                    assert plan.attacker_images is not None
                    duration = estimate_duration([plan])
                    uploads[defense] = duration.learning / len(plan.attacker_images.images)
                except RefinerError:
                    continue  # as above
                if duration.iterations:
                    iteration = duration.attacking / (len(y) * _TIMED_ITERATIONS)
                    public_runs = round(len(y) * duration.public / duration.attacking)
        elif "iterations" in attack.settings():
            iteration = estimate_duration([plan]).seconds / (len(y) * timed)
            grid = Tuning(x[:1], y[:1], **TUNING_GRID).grid(attack)
            tuning_runs = TUNING_VICTIMS * sum(point["iterations"] / timed for point in grid)
        audit = 0.0
        if not uploads or isinstance(attack, LinearReconstruction):
            taken = _seconds_of_an_audit(task, (x[:_AUDITED], y[:_AUDITED]), pool, name, seed)
            clients = min(_AUDITED, len(y))
            run = iteration * (timed if is_fixed else 1)
            audit = max(0.0, taken - clients * run - _PUBLIC * uploads.get("none", 0.0))
        fixed = timed if is_fixed and iteration else None
        costs[name] = AttackCost(iteration, audit, uploads, tuning_runs, public_runs, fixed)
    return costs


def _seconds_of_an_audit(
    task: Task,
    victims: tuple[Tensor, Tensor],
    pool: tuple[Tensor, Tensor] | None,
    attack: str,
    seed: int,
) -> float:
    """The time of an undefended audit of few clients, with one iteration and few public images."""
    start = time.perf_counter()
    attacker = attack_with_iterations(attack, 1)
    run_plan(Plan.of(task, *victims, defense="none", attack=attacker, pool=pool, seed=seed))
    return time.perf_counter() - start
