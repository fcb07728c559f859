"""`recommend_table`: which defence to take for a model of tabular data, and at what price."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from refiner import checks
from refiner.audit.duration import time_text
from refiner.audit.table.attacks import attack_undefended
from refiner.audit.table.audit import audit_table
from refiner.audit.table.result import TableAudit
from refiner.core.task import Task
from refiner.defenses import NoDefense, make_defense
from refiner.errors import DataError, ProtectionError, RefinerError
from refiner.recommendation.candidates import TABLE_CANDIDATES, check_candidates
from refiner.recommendation.price import Price, measure_price
from refiner.recommendation.run_recommendation import POOL, victim_count
from refiner.recommendation.search_plan import DEFAULT_BUDGET
from refiner.recommendation.table_result import TableEvidence, TableRecommendation, TableRow, TableTarget
from refiner.recommendation.table_training import train_on_rows

LEAST_ROWS = 40
TRAINING_ROUNDS, LEARNING_RATE = 200, 0.1
# Percent of the undefended accuracy; below it the accuracy decides.
_LEAST_PMM = 90.0
_BUDGET_SPENT = "the budget was spent on cheaper candidates"
Audit = Callable[..., TableAudit]


def recommend_table(
    task: Task,
    x: Tensor,
    y: Tensor,
    *,
    features: Sequence[str] | None = None,
    batch: int = 32,
    target: TableTarget | None = None,
    budget: float = DEFAULT_BUDGET,
    defenses: Sequence[str] = TABLE_CANDIDATES,
    attacks: Sequence[str] | None = None,
    training_rounds: int = TRAINING_ROUNDS,
    lr: float = LEARNING_RATE,
    seed: int = 0,
    note: Callable[[str], None] = lambda text: None,
) -> TableRecommendation:
    """Return which of several defences to take for rows of features: the cheapest that meets a target.

    A quarter of the rows, at most 64, is attacked, each as the batch of its own client; the attacker has the
    others. Attacks that reveal nothing without a defence are not used. Candidates are measured in the order
    of their gradient error; those that meet the target are attacked on a trained model, too, and trained. The
    choice is the one with the smallest gradient error among those that keep 90 % of the accuracy.

    Args:
        task: The model and its loss, which takes class labels.
        x: Rows scaled to 0..1 `[N, features]`, at least 40, in random order.
        y: Their class labels `[N]`.
        features: A name for every feature; numbered by default.
        batch: The batch size of the training that is to be protected.
        target: What a defence has to achieve.
        budget: About how many seconds attacks may take; candidates for which no time is left are skipped.
        defenses: The candidates, by name with settings.
        attacks: The attacks to try; by default those of `refiner audit`.
        training_rounds: Rounds of the short trainings that measure the accuracy a defence keeps; 0 for none.
        lr: Their learning rate.
        seed: Seed of everything random.
        note: Called with a line about every step.

    Returns:
        The recommendation, and what every candidate reached.

    Raises:
        RefinerError: Rows, labels or settings are wrong.

    >>> import torch
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> rows, labels = torch.rand(80, 5), torch.arange(80) % 2
    >>> task = Task(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)), rows)
    >>> names = ("gq:bits=8", "dp-gaussian:magnitude=10,clip=none")
    >>> recommend_table(task, rows, labels, batch=8, defenses=names, training_rounds=0).chosen
    'dp-gaussian:magnitude=10,clip=none'
    """
    asked, start = target or TableTarget(), time.monotonic()
    names = check_candidates(tuple(defenses))
    checks.number("budget", budget, 0, above=True)
    checks.integer("training_rounds", training_rounds, 0)
    checks.number("lr", lr, 0, above=True)
    if not isinstance(x, Tensor) or x.ndim != 2 or len(x) < LEAST_ROWS or len(x) != len(y):
        expected = f"at least {LEAST_ROWS} rows [N, features], and one label for each"
        raise DataError(field="x", value=x, expected=expected)
    count = victim_count(len(x))
    others = x[count : count + POOL], y[count : count + POOL]
    tested = len(others[1]) // 3
    test_rows, rows = ((others[0][s], others[1][s]) for s in (slice(tested), slice(tested, None)))
    checks.integer("batch", batch, 1, len(rows[1]))
    audit: Audit = partial(audit_table, x=x[:count], y=y[:count], public=others, features=features, seed=seed)
    undefended = attack_undefended(
        lambda attack: audit(task, defense="none", attack=attack), attacks, on_gpu=x.is_cuda
    )
    for name, error in undefended.skipped.items():
        note(f"{name} is not tried: {error}")
    found = TableRecommendation(
        None,
        (),
        TableEvidence.of(list((undefended.working or undefended.failing).values())),
        tuple(undefended.working),
        tuple(undefended.failing),
        {},
        asked,
        batch,
        count,
        training_rounds,
        None,
    )
    if not undefended.working:
        return found
    note(f"attacks that work without a defence: {', '.join(undefended.working)}")
    models = [(task, undefended.working)]
    train = partial(
        train_on_rows, task, rows, test_rows, rounds=training_rounds, batch=batch, lr=lr, seed=seed
    )
    if training_rounds:
        accuracy, trained = train(NoDefense())
        found = replace(found, accuracy=accuracy)
        note(f"none: accuracy {100 * accuracy:.1f} % after {training_rounds:,} rounds")
        models.append(
            (trained, {name: audit(trained, defense="none", attack=name) for name in undefended.working})
        )
    prices, skipped = _prices(task, names, rows[0][None, :batch], rows[1][None, :batch], seed, note)
    measured: list[TableRow] = []
    for number, (name, price) in enumerate(prices.items()):
        spent = time.monotonic() - start
        if number and spent > budget:
            skipped[name] = _BUDGET_SPENT
            note(f"{name} is left out: {_BUDGET_SPENT}")
            continue
        row = _measure(audit, models, name, price, asked)
        if row.is_met and found.accuracy is not None:
            row = _with_accuracy(row, found.accuracy, lambda name: train(make_defense(name))[0], note)
        measured.append(row)
        left = (time.monotonic() - start) / (number + 1) * (len(prices) - number - 1)
        note(f"{number + 1} of {len(prices)}: {_outcome(row)}, about {time_text(left)} left")
    ranked = tuple(sorted(measured, key=_preference))
    chosen = ranked[0].defense if ranked and ranked[0].is_met else None
    return replace(found, chosen=chosen, rows=ranked, skipped=skipped)


def _prices(
    task: Task, names: Sequence[str], x: Tensor, y: Tensor, seed: int, note: Callable[[str], None]
) -> tuple[dict[str, Price], dict[str, str]]:
    """The price of every candidate that applies, the cheapest first, and why the others don't."""
    prices, skipped = {}, {}
    for name in names:
        try:
            prices[name] = measure_price(task, make_defense(name), x, y, seed)
        except RefinerError as error:
            skipped[name] = str(error)
            note(f"{name} does not apply: {error}")
    return dict(sorted(prices.items(), key=lambda item: item[1].gradient_error)), skipped


def _measure(
    audit: Audit,
    models: Sequence[tuple[Task, dict[str, TableAudit]]],
    name: str,
    price: Price,
    target: TableTarget,
) -> TableRow:
    """What attacks reach on each model, with its undefended results, until one misses the target."""
    evidence: TableEvidence | None = None
    for task, controls in models:
        results = [
            audit(task, defense=name, attack=attack, control=control) for attack, control in controls.items()
        ]
        evidence = TableEvidence.of(results).or_worse(evidence)
        if not target.is_met(evidence):
            break
    assert evidence is not None
    return TableRow(name, evidence, price, target.is_met(evidence))


def _with_accuracy(
    row: TableRow, undefended: float, train: Callable[[str], float], note: Callable[[str], None]
) -> TableRow:
    """The row with PMM; a training that fails misses the target."""
    try:
        kept = 100 * train(row.defense) / max(undefended, 1e-9)
    except ProtectionError as error:
        note(f"{row.defense} is left out: its training failed ({error})")
        return replace(row, is_met=False)
    return replace(row, price=replace(row.price, pmm=kept))


def _outcome(row: TableRow) -> str:
    kept = "" if row.price.pmm is None else f", {row.price.pmm:.0f} % of the accuracy"
    met = "target met" if row.is_met else "target missed"
    return f"{row.defense}: error {row.evidence.error:.2f}, {met}{kept}"


def _preference(row: TableRow) -> tuple[float, ...]:
    """Those that meet the target and still learn by price, then by accuracy; the others by their error.

    The gradient error alone would prefer an upload that teaches nothing, with an error of 1, to noise that
    averages out; the accuracy alone would be decided by few rows.
    """
    if not row.is_met:
        return (2, -row.evidence.feature_error, row.price.gradient_error)
    if row.price.pmm is None or row.price.pmm >= _LEAST_PMM:
        return (0, row.price.gradient_error)
    return (1, -row.price.pmm, row.price.gradient_error)
