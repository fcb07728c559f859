"""The HTML report of a federated training: accuracy, loss, PMM, participation, time, what clients sent."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from refiner.federation.experiment import Experiment, Outcome
from refiner.federation.reference import Reference
from refiner.report import Curves, CurveSeries, Page, ReferenceLine, Section, SettingsTable, Table, write_page

_ROUNDS_FILE = "rounds.jsonl"


def write_training_report(
    folder: Path, experiment: Experiment, outcome: Outcome, reference: Reference | None = None
) -> Path:
    """Write the report of a finished training to `report.html` in its folder.

    Args:
        folder: The output folder of the training; its `rounds.jsonl`, if there is one, has the participation.
        experiment: What was trained, and how.
        outcome: Its outcome.
        reference: The training that it is compared with.

    Returns:
        The path.

    Raises:
        DataError: if the file can't be written.
    """
    rounds = _read_rounds(folder / _ROUNDS_FILE)
    page = training_page(experiment, outcome, reference, rounds)
    return write_page(folder / "report.html", replace(page, made=datetime.now(UTC)))


def training_page(
    experiment: Experiment,
    outcome: Outcome,
    reference: Reference | None = None,
    rounds: Sequence[Mapping[str, float]] = (),
) -> Page:
    """Return the contents of the report of a training.

    Args:
        experiment: What was trained, and how.
        outcome: Its outcome.
        reference: The training that it is compared with.
        rounds: For every round on Flower its `round`, and the numbers of clients `asked` and `used`.

    Returns:
        A page for `refiner.report.write_page`.

    >>> page = training_page(Experiment(data="sample"), Outcome(0.5, [(1, 0.25), (2, 0.5)], 3.0))
    >>> page.summary
    'Test accuracy after 2 rounds: 50.00 %. No reference was given, so that there is no PMM.'
    """
    last = outcome.curve[-1][0]
    accuracy = f"Test accuracy after {last:,} rounds: {100 * outcome.accuracy:.2f} %."
    compared = "No reference was given, so that there is no PMM"
    if reference is not None:
        compared = reference.describe(outcome)
    sections: list[Section] = [
        _accuracy_plot(experiment, outcome, reference),
        *_loss_plot(experiment, outcome, reference),
    ]
    if reference is not None:
        sections += _pmm_plot(outcome, reference)
    if rounds:
        used = CurveSeries("clients used", [(each["round"], each["used"]) for each in rounds])
        note = "Updates that arrived in time and were valid. rounds.jsonl names the others, and why."
        sections.append(Curves("Clients whose updates were used", [used], "round", "clients", note=note))
    details: list[Section] = [
        _accuracy_table(outcome, reference),
        SettingsTable(
            asdict(experiment), note="The same settings and device give the same training.", collapsed=False
        ),
    ]
    return Page(
        title=f"Federated training with {experiment.defense}"
        if experiment.defense != "none"
        else "Federated training without a defence",
        summary=f"{accuracy} {compared}.",
        facts=_facts(experiment, outcome, rounds),
        sections=sections,
        folded=details,
        note=(
            "A client sends one upload for each round that it takes part in: the sum of its local "
            "steps' gradients, each of them protected by the defence. Accuracy says nothing about what an "
            "upload reveals; `refiner audit` measures that."
        ),
        note_title="What the clients sent",
    )


def _facts(
    experiment: Experiment, outcome: Outcome, rounds: Sequence[Mapping[str, float]]
) -> list[tuple[str, str]]:
    training = experiment.training
    participation = f"{training.clients_per_round} of {training.clients}"
    if rounds:
        used, asked = (sum(each[name] for each in rounds) for name in ("used", "asked"))
        participation = f"{used:,.0f} of {asked:,.0f} ({100 * used / asked:.1f} %)" if asked else "none"
    size = outcome.upload_bytes
    steps = f", {training.local_steps} local steps" if training.local_steps > 1 else ""
    return [
        ("clients that took part" if rounds else "clients in a round", participation),
        ("time per round", _round_time(outcome)),
        ("bytes per upload", "–" if size is None else f"{size:,}"),
        ("samples per step", f"{training.batch}{steps}"),
        ("defence", experiment.defense),
        ("data and model", f"{experiment.data}, {experiment.model}, {experiment.partition}"),
    ]


def _round_time(outcome: Outcome) -> str:
    """Return the mean time of a round of this run, evaluations included.

    >>> _round_time(Outcome(0.5, [(4, 0.5)], 2.0, rounds_run=4)), _round_time(Outcome(0.5, [(4, 0.5)], 2.0))
    ('500 ms', '–')
    """
    if not outcome.rounds_run:
        return "–"
    seconds = outcome.seconds / outcome.rounds_run
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _accuracy_plot(experiment: Experiment, outcome: Outcome, reference: Reference | None) -> Curves:
    curves = [CurveSeries(experiment.defense, [(at, 100 * score) for at, score in outcome.curve])]
    if reference is not None:
        points = [(at, 100 * score) for at, score in reference.curve]
        curves.append(CurveSeries("reference", points))
    return Curves("Test accuracy", curves, "rounds", "test accuracy in %", unit="%")


def _loss_plot(experiment: Experiment, outcome: Outcome, reference: Reference | None) -> list[Section]:
    """Return the plot of the test loss; none for trainings whose log has no losses."""
    if not outcome.losses:
        return []
    curves = [CurveSeries(experiment.defense, outcome.losses)]
    if reference is not None and reference.losses:
        curves.append(CurveSeries("reference", reference.losses))
    note = "The mean loss of the same test images, which the server has. Lower is better."
    return [Curves("Test loss", curves, "rounds", "test loss", note=note)]


def _pmm_by_round(outcome: Outcome, reference: Reference) -> list[tuple[int, float]]:
    """Return PMM in per cent after all rounds after which both trainings were evaluated."""
    theirs = dict(reference.curve)
    return [(at, 100 * score / theirs[at]) for at, score in outcome.curve if theirs.get(at)]


def _pmm_plot(outcome: Outcome, reference: Reference) -> list[Section]:
    points = [point for point in _pmm_by_round(outcome, reference) if math.isfinite(point[1])]
    if not points:
        return []
    note = "Accuracy in per cent of the reference's after the same number of rounds."
    line = ReferenceLine("the reference", 100.0)
    return [Curves("PMM", [CurveSeries("PMM", points)], "rounds", "PMM in %", [line], note, "%")]


def _accuracy_table(outcome: Outcome, reference: Reference | None) -> Table:
    theirs = {} if reference is None else dict(reference.curve)
    pmm = {} if reference is None else dict(_pmm_by_round(outcome, reference))
    losses = dict(outcome.losses)
    columns = ["rounds", "accuracy", *(["reference", "PMM"] if reference is not None else [])]
    columns += ["loss"] if losses else []
    rows = []
    for at, score in outcome.curve:
        row = [f"{at:,}", f"{100 * score:.2f} %"]
        if reference is not None:
            row.append(f"{100 * theirs[at]:.2f} %" if at in theirs else "–")
            row.append(f"{pmm[at]:.1f} %" if at in pmm else "–")
        if losses:
            row.append(f"{losses[at]:.4g}" if at in losses else "–")
        rows.append(row)
    return Table("All evaluations", columns, rows)


def _read_rounds(file: Path) -> list[dict[str, float]]:
    """Return the last entry of each round; what is not an entry, as half a line, is left out."""
    found: dict[int, dict[str, float]] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                found[int(row["round"])] = {name: float(row[name]) for name in ("round", "asked", "used")}
            except (ValueError, KeyError, TypeError):
                continue
    return [found[at] for at in sorted(found)]
