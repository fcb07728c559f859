"""`refiner recommend --data csv:FILE --target COLUMN`: which defence to take for tabular data."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import typer

from refiner.checks import integer
from refiner.cli.common import console, print_json, print_line
from refiner.cli.tabular import check_table_options, load_table, print_table, table_task
from refiner.files import write_atomically
from refiner.recommendation.candidates import TABLE_CANDIDATES
from refiner.recommendation.table_recommendation import LEARNING_RATE, TRAINING_ROUNDS, recommend_table
from refiner.recommendation.table_report import COLUMNS, table_rows, write_table_recommendation
from refiner.recommendation.table_result import TableTarget

OPTIONS = (
    *("out", "data", "target", "model", "weights", "classes", "batch", "min_error", "budget", "defense"),
    *("attack", "train_rounds", "lr", "seed", "device", "as_json", "quiet"),
)
# Narrower terminals show what the choice depends on; the report has all columns.
_WIDE = 130


def recommend_tabular(
    command: typer.Context,
    path: Path,
    *,
    out: Path,
    target: str | None,
    model: str | None,
    weights: Path | None,
    classes: int | None,
    batch: int,
    min_error: float | None,
    budget: float,
    defenses: Sequence[str],
    attacks: Sequence[str],
    training_rounds: int | None,
    lr: float | None,
    seed: int,
    device: torch.device,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find a defence for the rows of a CSV file, print it, and write `report.html` and `recommendation.json`.

    Args:
        command: The command that was run.
        path: The CSV file.
        out: The folder for the results.
        target: The column with the class labels.
        model: The model, by name or as code; None for an MLP.
        weights: Its weights.
        classes: Its number of classes.
        batch: Batch size of the training that is to be protected.
        min_error: The smallest error of a feature that an attack may reach; None for the default.
        budget: The seconds that attacks may take.
        defenses: The candidates; none for all.
        attacks: The attacks; none for those that work on this model.
        training_rounds: Rounds of the short trainings; None for the default.
        lr: Their learning rate; None for the default.
        seed: Seed of everything random.
        device: Where to compute.
        as_json: Whether to print the record instead of the table.
        quiet: Whether to show no progress.

    Raises:
        RefinerError: An option or the table is wrong.
    """
    check_table_options(command, OPTIONS)
    asked = TableTarget() if min_error is None else TableTarget(min_error)
    torch.manual_seed(integer("seed", seed, 0, 2**31))
    table = load_table(path, target, seed)
    task = table_task(table, model, weights, classes, device)

    def note(text: str) -> None:
        if not quiet:
            print_line(text)

    try:
        found = recommend_table(
            task,
            table.x.to(device),
            table.y.to(device),
            features=table.features,
            batch=batch,
            target=asked,
            budget=budget,
            defenses=defenses or TABLE_CANDIDATES,
            attacks=attacks or None,
            training_rounds=TRAINING_ROUNDS if training_rounds is None else training_rounds,
            lr=LEARNING_RATE if lr is None else lr,
            seed=seed,
            note=note,
        )
    except KeyboardInterrupt:
        print_line("stopped; a search for a table keeps nothing before its end: run the same command again")
        raise typer.Exit(130) from None
    page = write_table_recommendation(out / "report.html", found, table.source)
    record = found.record()
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write_atomically(out / "recommendation.json", f"{text}\n".encode())
    if as_json:
        print_json({**record, "report": page})
        return
    hidden = {"time"} if console.width >= _WIDE else {"time", "strongest attack", "leaks most"}
    if found.accuracy is None:
        hidden.add("PMM, %")
    print_table(COLUMNS, table_rows(found), ("defence", "target", "strongest attack", "leaks most"), hidden)
    console.print(found.sentence, highlight=False, markup=False)
    if found.code:
        console.print(found.code, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
