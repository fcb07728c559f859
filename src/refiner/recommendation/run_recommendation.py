"""`recommend`: which defence to take for a model and its data, how strong, and at what price."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from refiner import checks
from refiner.audit import Victims, audit_all
from refiner.audit.auto_attacks import attacks_to_try
from refiner.audit.public_images import without_victims
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.recommendation.candidates import CANDIDATES, check_candidates
from refiner.recommendation.cost import TUNING_VICTIMS, measure_costs
from refiner.recommendation.result import Recommendation
from refiner.recommendation.scale import Scale, fit_scale, scaled_down, spare_candidates
from refiner.recommendation.search import Note, Search
from refiner.recommendation.search_plan import DEFAULT_BUDGET, SearchPlan
from refiner.recommendation.target import Target

MOST_VICTIMS, POOL, PUBLIC = 64, 3000, 1000
# One of so many images is attacked, so that most are left to learn from and to train on.
_IMAGES_PER_VICTIM = 4


def recommend(
    task: Task,
    x: Tensor,
    y: Tensor,
    *,
    batch: int = 32,
    target: Target | None = None,
    budget: float = DEFAULT_BUDGET,
    defenses: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    training_rounds: int = 0,
    lr: float = 0.01,
    seed: int = 0,
    plan: SearchPlan | None = None,
    out: Path | None = None,
    note: Note = lambda text: None,
) -> Recommendation:
    """Return which of several defences to take: the cheapest that meets a target against working attacks.

    Attacks are first run without a defence; those that reveal nothing then are not used. All defences are
    attacked on few clients, and the better ones on more. The price of a defence is the error of its uploads
    at the real batch size, or the accuracy of a short training.

    Args:
        task: The model and its loss.
        x: Images in 0..1, `[N, C, H, W]`: a quarter of them, at most 64, are attacked as single-image
            uploads, the worst case; attackers learn from others.
        y: Their labels `[N]`.
        batch: The batch size of the training that is to be protected.
        target: What a defence has to achieve; by default no attack may be better than a blind guess.
        budget: About how many seconds the attacks may take; the search is scaled down until it fits.
        defenses: The candidates, by name with settings; None for `CANDIDATES`, or some of them where the
            budget is short.
        attacks: The attacks to try; None for those of an audit without an attack (`attacks_to_try`), or some
            of them where the budget is short.
        training_rounds: Rounds of short trainings that measure the accuracy which the finalists keep, after
            which the trained model is attacked too; 0 for none.
        lr: The learning rate of these trainings.
        seed: Seed of everything random.
        plan: What to run, instead of what `budget` allows; its own settings replace those given here.
        out: A folder for results; the same call with it continues an interrupted search.
        note: Called with a line about every step.

    Returns:
        The recommendation, with what was measured of all candidates.

    Raises:
        RefinerError: Images, labels or settings are wrong, or the budget is too short for any search.
    """
    images = split_images(task, x, y)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if out is None else out
        plan = plan or make_plan(
            task,
            images,
            batch=batch,
            target=target or Target(),
            budget=budget,
            defenses=defenses,
            attacks=attacks,
            training_rounds=training_rounds,
            lr=lr,
            seed=seed,
        )
        note(plan.text)
        return Search(task, images, plan, folder, lambda plans: audit_all(plans, folder), note).run()


def split_images(task: Task, x: Tensor, y: Tensor) -> Victims:
    """Split labelled images into clients of one image to attack, images to tune on, and images to learn from.

    Args:
        task: The model and its loss.
        x: Images `[N, C, H, W]`.
        y: Labels `[N]`.

    Returns:
        The parts.

    Raises:
        DataError: There are fewer than 8 images.
    """
    if len(x) < 2 * _IMAGES_PER_VICTIM or len(x) != len(y):
        raise DataError(field="x", value=x, expected="at least 8 images, and one label for each")
    count = victim_count(len(x))
    first = count + TUNING_VICTIMS
    others = without_victims(x[count : count + PUBLIC], x[:count])
    return Victims(
        x[:count, None],
        y[:count, None],
        [f"image {number}" for number in range(1, count + 1)],
        others if len(others) else None,
        task.classes,
        f"{len(x)} images",
        x[count:first, None],
        y[count:first, None],
        (x[first : first + POOL], y[first : first + POOL]) if len(x) > first else None,
    )


def victim_count(images: int) -> int:
    """Return how many of so many images are attacked.

    >>> victim_count(12), victim_count(200), victim_count(50_000)
    (3, 50, 64)
    """
    return min(MOST_VICTIMS, max(2, images // _IMAGES_PER_VICTIM))


def make_plan(
    task: Task,
    images: Victims,
    *,
    batch: int,
    target: Target,
    budget: float,
    defenses: Sequence[str] | None,
    attacks: Sequence[str] | None,
    training_rounds: int,
    lr: float,
    seed: int,
    earlier: SearchPlan | None = None,
) -> SearchPlan:
    """Return the most thorough plan that a budget allows on this machine; other arguments as in `recommend`.

    What the default lists of defences and attacks contain is left out where the budget is short, but nothing
    that was named.

    Args:
        task: The model and its loss.
        images: The clients to attack, and images to tune on and to learn from.
        defenses: The candidates; None for all.
        attacks: The attacks to try; None for those that suit the device.
        earlier: The plan of an earlier search; it is returned if it was made for the same question.

    Raises:
        DataError: The budget is too short for the smallest plan; it says which would do.
    """
    candidates = check_candidates(tuple(defenses or CANDIDATES))
    on_gpu = next(iter(task.parameters().values())).is_cuda
    names = tuple(attacks or attacks_to_try(on_gpu=on_gpu))
    checks.number("budget", budget, 0, above=True)
    question: dict[str, Any] = {
        "asked": (*candidates, *names),
        "target": target,
        "batch": batch,
        "training_rounds": training_rounds,
        "lr": lr,
        "seed": seed,
        "budget": float(budget),
    }
    if earlier is not None and earlier.is_for(**question):
        return earlier
    costs = measure_costs(task, images, candidates, names, seed)
    pool = 0 if images.pool is None else len(images.pool[1])
    full = Scale(
        candidates, names, min(len(images.y), MOST_VICTIMS), pool, is_tuned=images.tuning_x is not None
    )
    scale = fit_scale(full, budget, costs, keep_candidates=defenses is not None, keep_attacks=bool(attacks))
    return SearchPlan(
        scale.candidates,
        scale.attacks,
        scale.plan_rungs,
        tuning_victims=TUNING_VICTIMS if scale.is_tuned else 0,
        seconds=round(scale.seconds(costs), 1),
        public_images=scale.public if scale.public < pool else None,
        spare=spare_candidates(scale, budget, costs),
        scaled_down=scaled_down(full, scale, costs),
        **question,
    )
