"""`refiner audit --data csv:FILE --target COLUMN`: the audit of tabular data."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import typer

from refiner.attacks import ThreatModel, attack_with_iterations
from refiner.audit.auto_attacks import ALL, AUTO
from refiner.audit.table.attacks import attack_undefended
from refiner.audit.table.audit import audit_table
from refiner.audit.table.report import COLUMNS, strongest, table_rows, write_table_report
from refiner.audit.table.result import TableAudit
from refiner.checks import integer
from refiner.cli.common import console, print_json, print_line
from refiner.cli.tabular import check_table_options, load_table, print_table, table_task
from refiner.core.determinism import deterministic_algorithms
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.files import write_atomically

OPTIONS = (
    *("out", "data", "target", "model", "weights", "classes", "defense", "attack", "victims", "batch"),
    *("iterations", "grant", "deny", "public_images", "seed", "device", "deterministic", "as_json", "quiet"),
)
DEFENSES = ("none", "dp-gaussian")
# A narrower terminal shows what the verdict depends on.
_WIDE = 110


def audit_tabular(
    command: typer.Context,
    path: Path,
    threat: ThreatModel,
    *,
    out: Path,
    target: str | None,
    model: str | None,
    weights: Path | None,
    classes: int | None,
    defenses: Sequence[str],
    attacks: Sequence[str],
    victims: int,
    batch: int,
    iterations: int | None,
    public_rows: int,
    seed: int,
    device: torch.device,
    deterministic: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Audit the rows of a CSV file, print a table, and write `report.html` and `table/results.json`.

    Args:
        command: The command that was run.
        path: The CSV file.
        threat: What the attacker is given.
        out: The folder for the results.
        target: The column with the class labels.
        model: The model, by name or as code; None for an MLP.
        weights: Its weights.
        classes: Its number of classes.
        defenses: The defences; none for `DEFENSES`.
        attacks: The attacks; none for those that work on this model.
        victims: Number of clients.
        batch: Rows of each.
        iterations: Iterations of every attack that iterates.
        public_rows: The most rows that the attacker has.
        seed: Seed of everything random.
        device: Where to compute.
        deterministic: Whether results are bit-identical on a GPU too.
        as_json: Whether to print the record instead of the table.
        quiet: Whether to show no progress.

    Raises:
        RefinerError: An option or the table is wrong.
    """
    check_table_options(command, OPTIONS)
    integer("victims", victims, 1)
    integer("batch", batch, 1)
    integer("public_images", public_rows, 2)
    names = list(dict.fromkeys(defenses or DEFENSES))
    for name in names:
        make_defense(name)
    if ALL in attacks:
        raise DataError(field="attack", value=ALL, expected=f"{AUTO}, or attacks by name, for a table")
    if AUTO in attacks and len(attacks) > 1:
        raise DataError(field="attack", value=AUTO, expected="no other attack beside it")
    chosen = () if AUTO in attacks else tuple(dict.fromkeys(attacks))
    for name in chosen:
        attack_with_iterations(name, iterations)
    torch.manual_seed(integer("seed", seed, 0, 2**32 - 1))
    table = load_table(path, target, seed)
    count = victims * batch
    if count > len(table.y) // 2:
        most = len(table.y) // 2 // batch
        expected = f"at most {most}: half of {len(table.y)} rows, in batches of {batch}"
        raise DataError(field="victims", value=victims, expected=expected)
    with deterministic_algorithms(deterministic, device):
        task = table_task(table, model, weights, classes, device)
        x, y = table.x.to(device), table.y.to(device)
        public = slice(count, count + public_rows)
        audit = partial(
            audit_table,
            task,
            x[:count].view(victims, batch, -1),
            y[:count].view(victims, batch),
            public=(x[public], y[public]),
            features=table.features,
            threat=threat,
            seed=seed,
        )
        try:
            results = _run(audit, names, chosen, iterations, on_gpu=device.type == "cuda", quiet=quiet)
        except KeyboardInterrupt:
            print_line(
                "stopped; an audit of a table keeps nothing before its end: run the same command again"
            )
            raise typer.Exit(130) from None
    page = write_table_report(out / "report.html", results, table.source)
    record = {"source": table.source, "target": target, "audits": [result.record() for result in results]}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    # `refiner compare` reads the files in the folder itself, which are audits of images.
    write_atomically(out / "table" / "results.json", f"{text}\n".encode())
    if as_json:
        print_json({**record, "report": page})
        return
    hidden = () if console.width >= _WIDE else ("undefended", "its error")
    print_table(COLUMNS, table_rows(results), ("defence", "attack", "leaks most", "verdict"), hidden)
    for result in strongest(results):
        console.print(result.sentence, highlight=False, markup=False)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _run(
    audit: Callable[..., TableAudit],
    defenses: Sequence[str],
    attacks: Sequence[str],
    iterations: int | None,
    *,
    on_gpu: bool,
    quiet: bool,
) -> list[TableAudit]:
    """The audits of all defences against those attacks, or against the ones that work without a defence."""

    def run(attack: str, defense: str = "none", control: TableAudit | None = None) -> TableAudit:
        start = time.perf_counter()
        attacker = attack_with_iterations(attack, iterations)
        result = replace(audit(defense=defense, attack=attacker, control=control), attack=attack)
        note(f"{result.sentence.removesuffix('.')}, {time.perf_counter() - start:.1f} s")
        return result

    def note(text: str) -> None:
        if not quiet:
            print_line(text)

    undefended = attack_undefended(run, attacks, on_gpu=on_gpu)
    for attack, error in undefended.skipped.items():
        if attacks:
            raise error
        note(f"{attack} is not tried: {error}")
    controls = undefended.working
    if attacks or not controls:  # an attack that fails without a defence gives no verdict, and says so
        controls = undefended.working | undefended.failing
    return [
        control if defense == "none" else run(attack, defense, control)
        for defense in defenses
        for attack, control in controls.items()
    ]
