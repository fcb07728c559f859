"""`refiner audit --attack attribute --attribute NAME`: whether uploads reveal a property of a client."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import typer

from refiner.attacks import ThreatModel
from refiner.audit.attribute_audit import audit_attribute
from refiner.audit.attribute_clients import load_attribute_clients
from refiner.audit.attribute_report import COLUMNS, attribute_rows, write_attribute_report
from refiner.audit.attribute_result import AttributeAudit
from refiner.checks import integer
from refiner.cli.common import console, print_json, print_line
from refiner.cli.tabular import check_table_options, is_given, print_table
from refiner.core import Task
from refiner.core.determinism import deterministic_algorithms
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.inference import AttributeInference
from refiner.models import build_model
from refiner.registry import make_by_name

NAME = AttributeInference.name
OPTIONS = (
    *("out", "data", "root", "model", "weights", "defense", "attack", "victims", "batch", "grant", "deny"),
    *("attribute", "share", "least_images", "seed", "device", "deterministic", "as_json", "quiet"),
)
DEFENSES = ("none", "refiner")
# An image alone has no attribute of its batch; the intervals of few clients say nothing.
_BATCH, _CLIENTS = 8, 100


def is_attribute_audit(command: typer.Context, attacks: Sequence[str], attribute: str | None) -> bool:
    """Return whether the options ask for an attribute; raise if they ask for something else as well."""
    named = [attack.partition(":")[0] == NAME for attack in attacks]
    if any(named) and not all(named):
        raise DataError(field="attack", value=NAME, expected="no other attack beside it")
    if any(named) and attribute is None:
        problem = "needs --attribute NAME, such as gender of lfw"
        raise DataError(field="attack", value=NAME, problem=problem)
    if any(named) or (attribute is not None and not attacks):
        return True
    for name in ("attribute", "share", "least_images"):
        if is_given(command, name):
            raise DataError(field=name, value=command.params[name], problem=f"only with --attack {NAME}")
    return False


def audit_attributes(
    command: typer.Context,
    threat: ThreatModel,
    *,
    out: Path,
    data: str | None,
    root: Path | None,
    attribute: str | None,
    shares: bool,
    least_images: int | None,
    model: str,
    weights: Path | None,
    defenses: Sequence[str],
    attacks: Sequence[str],
    victims: int,
    batch: int,
    seed: int,
    device: torch.device,
    deterministic: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Audit an attribute of a dataset, print a table, and write `report.html` and `attribute/results.json`.

    Args:
        command: The command that was run.
        threat: What the attacker is given.
        out: The folder for the results.
        data: The dataset; `lfw` by default.
        root: A folder with its files.
        attribute: The attribute's name.
        shares: Whether batches are mixed.
        least_images: Only people with at least so many images.
        model: The model, by name or as code.
        weights: Its weights.
        defenses: The defences; none for `DEFENSES`.
        attacks: The attack with settings, once.
        victims: The most clients.
        batch: Images of each.
        seed: Seed of everything random.
        device: Where to compute.
        deterministic: Whether results are bit-identical on a GPU too.
        as_json: Whether to print the record instead of the table.
        quiet: Whether to show no progress.

    Raises:
        RefinerError: An option or the data are wrong.
    """
    assert attribute is not None  # see `is_attribute_audit`
    check_table_options(command, OPTIONS, "an attribute")
    attacker = make_by_name({NAME: AttributeInference}, "attack", attacks[0] if attacks else NAME)
    names = list(dict.fromkeys(defenses or DEFENSES))
    for name in names:
        make_defense(name)
    torch.manual_seed(integer("seed", seed, 0, 2**32 - 1))
    with deterministic_algorithms(deterministic, device):
        people = load_attribute_clients(
            data or "lfw",
            attribute,
            root=root,
            clients=victims if is_given(command, "victims") else _CLIENTS,
            batch=batch if is_given(command, "batch") else _BATCH,
            shares=shares,
            least_images=least_images,
            seed=seed,
        )
        network = build_model(model, people.classes, tuple(people.x.shape[2:]), weights=weights).to(device)
        x, y = people.x.to(device), people.y.to(device)
        audit = partial(
            audit_attribute,
            Task(network, example=x[0]),
            x,
            y,
            people.attribute,
            public=people.public,
            groups=people.groups,
            attack=attacker,
            name=attribute,
            threat=threat,
            seed=seed,
        )
        control = _run(audit, "none", None, quiet)
        results = [control if name == "none" else _run(audit, name, control, quiet) for name in names]
    page = write_attribute_report(out / "report.html", results, people.source)
    record = {"source": people.source, "audits": [result.record() for result in results]}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    # `refiner compare` reads the files in the folder itself, which are audits of images.
    write_atomically(out / "attribute" / "results.json", f"{text}\n".encode())
    if as_json:
        print_json({**record, "report": page})
        return
    print_table(COLUMNS, attribute_rows(results), ("defence", "attribute", "verdict"), ())
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _run(
    audit: "partial[AttributeAudit]", defense: str, control: AttributeAudit | None, quiet: bool
) -> AttributeAudit:
    result = audit(defense=defense, control=control)
    if not quiet:
        print_line(result.sentence)
    return result
