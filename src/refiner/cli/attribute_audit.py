"""`refiner audit --attack attribute --attribute NAME`: whether uploads reveal a property of a client."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import typer
from rich.progress import Progress, TaskID

from refiner.audit.attribute.audit import audit_attribute
from refiner.audit.attribute.clients import AttributeClients, load_attribute_clients
from refiner.audit.attribute.report import COLUMNS, attribute_page, attribute_rows
from refiner.audit.attribute.result import AttributeAudit
from refiner.checks import integer
from refiner.cli.audit_steps import threat_model
from refiner.cli.inference_answers import InferenceAnswers
from refiner.cli.interrupt import stopped_audit
from refiner.cli.membership_audit import is_membership
from refiner.cli.model_options import parse_numbers
from refiner.cli.progress import progress_bar
from refiner.cli.tabular import is_given, print_table
from refiner.core import Task
from refiner.core.determinism import deterministic_algorithms
from refiner.data.data_name import SAMPLE
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.inference import AttributeInference
from refiner.models import build_model
from refiner.registry import make_by_name

NAME = AttributeInference.name
OPTIONS = (
    *("out", "data", "root", "model", "weights", "mean", "std", "defense", "attack", "victims", "batch"),
    *("grant", "deny", "attribute", "share", "least_images", "seed", "device", "deterministic"),
    *("as_json", "quiet"),
)
OF_OTHER_CLIENTS = ("rounds", "epochs", "local_steps", "summed_clients", "size", "classes")
"""What beside other attacks would give an attribute's clients another model or training than theirs."""
DEFENSES = ("none", "refiner")
# An image alone has no attribute of its batch; the intervals of few clients say nothing.
_BATCH, _CLIENTS = 8, 100


def answer_attribute(command: typer.Context, attack: str, device: torch.device) -> InferenceAnswers:
    """Return what uploads reveal of an attribute, behind every defence of the options of `refiner audit`.

    Args:
        command: The command that was run.
        attack: The attack, as from `attribute_attack`.
        device: Where to compute.

    Raises:
        RefinerError: An option or the data are wrong.
    """
    given = command.params
    attacker = make_by_name({NAME: AttributeInference}, "attack", attack)
    threat = threat_model(given["grant"] or (), given["deny"] or ())
    names = list(dict.fromkeys(given["defense"] or DEFENSES))
    for name in names:
        make_defense(name)
    integer("seed", given["seed"], 0, 2**32 - 1)
    # Click has not yet made paths of these options.
    root, weights = (None if given[name] is None else Path(given[name]) for name in ("root", "weights"))
    with deterministic_algorithms(given["deterministic"], device):
        people = load_attribute_clients(
            # Attacks beside this one have the same images.
            given["data"] or ("lfw" if len(given["attack"] or ()) < 2 else SAMPLE),
            given["attribute"],
            root=root,
            clients=given["victims"] if is_given(command, "victims") else _CLIENTS,
            batch=given["batch"] if is_given(command, "batch") else _BATCH,
            shares=given["share"],
            least_images=given["least_images"],
            seed=given["seed"],
        )
        audit = partial(
            audit_attribute,
            attribute_task(
                people,
                given["model"],
                weights,
                given["seed"],
                device,
                mean=parse_numbers("mean", given["mean"]),
                std=parse_numbers("std", given["std"]),
            ),
            people.x.to(device),
            people.y.to(device),
            people.attribute,
            public=people.public,
            groups=people.groups,
            attack=attacker,
            name=given["attribute"],
            threat=threat,
            seed=given["seed"],
        )
        results = _run_all(partial(audit, folder=Path(given["out"]) / NAME), names, quiet=given["quiet"])
    return InferenceAnswers(
        NAME,
        {"source": people.source, "audits": [result.record() for result in results]},
        attribute_page(results, people.source),
        lambda: print_table(COLUMNS, attribute_rows(results), ("defence", "attribute", "verdict"), ()),
    )


def attribute_task(
    people: AttributeClients,
    model: str,
    weights: Path | None,
    seed: int,
    device: torch.device,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Task:
    """Return the model for the task of these people; the same for the same seed.

    Args:
        people: Clients and public people.
        model: The model's name, or code.
        weights: Its weights; None draws them from the seed.
        seed: The seed of the initial weights.
        device: Where to compute.
        mean: What the model subtracts from each channel first; None for nothing.
        std: What it divides each channel by; None for nothing.

    Raises:
        RefinerError: The model or its weights don't fit.
    """
    torch.manual_seed(seed)
    shape = tuple(people.x.shape[2:])
    network = build_model(model, people.classes, shape, weights=weights, mean=mean, std=std)
    return Task(network.to(device), example=people.x[0].to(device))


def attribute_attack(command: typer.Context, attacks: Sequence[str]) -> str | None:
    """Return the attack that infers an attribute, if the options ask for one.

    Args:
        command: The command that was run.
        attacks: All its attacks; with none, `--attribute` alone asks for it.

    Raises:
        DataError: It is named twice, or without its attribute, or an option of it is given without it.
    """
    attribute = command.params["attribute"]
    named = [attack for attack in attacks if attack.partition(":")[0] == NAME]
    if len(named) > 1:
        raise DataError(field="attack", value=named[1], expected=f"{NAME} once")
    if named and attribute is None:
        problem = "needs --attribute NAME, such as gender of lfw"
        raise DataError(field="attack", value=NAME, problem=problem)
    if named or (attribute is not None and not attacks):
        return named[0] if named else NAME
    own = {"attribute": NAME, "share": NAME}
    if not any(map(is_membership, attacks)):
        own["least_images"] = f"{NAME} or membership"
    for name, attack in own.items():
        if is_given(command, name):
            raise DataError(field=name, value=command.params[name], problem=f"only with --attack {attack}")
    return None


def _run_all(
    audit: Callable[..., AttributeAudit], names: Sequence[str], *, quiet: bool
) -> list[AttributeAudit]:
    """The audits of all defences; the first, without a defence, is the control of the others.

    Finished ones are kept: Ctrl-C ends the command with one line and exit code 130.
    """
    order = ("none", *(name for name in names if name != "none"))
    results: dict[str, AttributeAudit] = {}
    with progress_bar(quiet=quiet) as bar:
        try:
            for name in order:
                title = f"{name} ({len(results) + 1} of {len(order)})"
                line = bar.add_task(f"{title}: simulated clients", total=None)
                audited = audit(
                    defense=name, control=results.get("none"), on_progress=_shown_on(bar, line, title)
                )
                bar.remove_task(line)
                results[name] = audited
                bar.console.print(audited.sentence, highlight=False, markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            bar.stop()
            raise stopped_audit(len(results), len(order)) from None
    return [results[name] for name in names]


def _shown_on(bar: Progress, line: TaskID, title: str) -> Callable[[str, int, int], None]:
    """What shows the stages of an audit on a line of a progress bar."""

    def show(stage: str, done: int, total: int) -> None:
        steps = "attack models" if stage == "models" else "simulated clients"
        bar.update(line, description=f"{title}: {steps}", completed=done, total=total)

    return show
