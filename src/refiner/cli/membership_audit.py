"""`refiner audit --attack membership[:method=NAME]`: do uploads tell which images a client trained on?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import typer
from rich.progress import Progress, TaskID

from refiner.audit import MembershipAudit, Protocol, Training, audit_membership
from refiner.audit.membership.images import load_membership_images
from refiner.audit.membership.report import COLUMNS, membership_page, membership_rows, strongest
from refiner.checks import integer
from refiner.cli.audit_steps import checked_defenses, threat_model
from refiner.cli.common import console
from refiner.cli.inference_answers import InferenceAnswers
from refiner.cli.interrupt import stopped_audit
from refiner.cli.model_options import parse_numbers
from refiner.cli.progress import progress_bar
from refiner.cli.tabular import is_given, print_table
from refiner.core import Task
from refiner.core.determinism import deterministic_algorithms
from refiner.errors import DataError
from refiner.inference import MembershipAttack, make_membership_attack
from refiner.models import build_model
from refiner.models.build import check_model_classes
from refiner.registry import parse_settings

NAME = "membership"
METHOD = "likelihood"
"""The method of `membership` alone: the strongest on one upload."""
ONLY_MEMBERSHIP = ("rounds", "epochs")
ONLY_RECONSTRUCTION = (
    *("iterations", "tune_attacker", "tuning_victims", "from_robust", "training", "chunk", "no_control"),
)
# A narrower terminal shows what the verdict depends on.
_WIDE = 130


def is_membership(attack: str) -> bool:
    """Return whether an option `--attack` names a membership attack.

    >>> is_membership("membership:method=alignment"), is_membership("linear")
    (True, False)
    """
    return attack.partition(":")[0] == NAME


def membership_attack(text: str) -> MembershipAttack:
    """Return the attack of `membership[:method=NAME,setting=value,…]`.

    Raises:
        DataError: The method or a setting is unknown.

    >>> membership_attack("membership:method=alignment,images=50")
    Alignment(relative=True, images=50)
    """
    _, settings = parse_settings("attack", text)
    return make_membership_attack(str(settings.pop("method", METHOD)), **settings)


def answer_membership(
    command: typer.Context, attacks: Sequence[str], device: torch.device
) -> InferenceAnswers:
    """Return what uploads reveal of membership, behind every defence of the options of `refiner audit`.

    Args:
        command: The command that was run.
        attacks: The options `--attack` that are membership attacks.
        device: Where to compute.

    Raises:
        RefinerError: An option or the data are wrong.
    """
    results, source = _run(command, attacks, device)
    record = {"source": source, "audits": [result.record() for result in results]}
    return InferenceAnswers(NAME, record, membership_page(results, source), partial(_print, results))


def _print(results: Sequence[MembershipAudit]) -> None:
    """Print the table of the audits, and a sentence for each defence."""
    rows = membership_rows(results)
    rates = [index for index, name in enumerate(COLUMNS) if name.startswith("TPR")]
    empty = [COLUMNS[index] for index in rates if all(row[index] == "–" for row in rows)]
    hidden = list(empty)
    if console.width < _WIDE:
        # An interval has room where no rate is shown.
        hidden += ["blind", "balanced accuracy", *(["95 % interval"] if len(empty) < len(rates) else [])]
    print_table(COLUMNS, rows, ("defence", "attack", "verdict"), hidden)
    for result in strongest(results):
        console.print(result.sentence, highlight=False, markup=False)


def _run(
    command: typer.Context, attacks: Sequence[str], device: torch.device
) -> tuple[list[MembershipAudit], str]:
    """The audits of all defences against all membership attacks, and the source of the images."""
    given = command.params
    defenses = checked_defenses(given["defense"])
    methods = {text: membership_attack(text) for text in attacks}
    protocol = Protocol(given["local_steps"], given["lr"], given["summed_clients"])
    training = Training(given["rounds"], given["epochs"], protocol)
    threat = threat_model(given["grant"] or (), given["deny"] or ())
    with deterministic_algorithms(given["deterministic"], device):
        torch.manual_seed(integer("seed", given["seed"], 0, 2**32 - 1))
        # Click has not yet made paths of these options.
        root, weights = (None if given[name] is None else Path(given[name]) for name in ("root", "weights"))
        names = ("victims", "batch", "size", "classes", "seed", "public_images", "least_images")
        numbers = {name: given[name] for name in names}
        images = load_membership_images(given["data"], root=root, **numbers).to(device)
        network = build_model(
            given["model"],
            images.classes,
            tuple(images.x.shape[2:]),
            classes_given=given["classes"] is not None,
            weights=weights,
            mean=parse_numbers("mean", given["mean"]),
            std=parse_numbers("std", given["std"]),
        )
        task = Task(network.to(device), example=images.x[0])
        check_model_classes(task, images.y, given["classes"])
        learners = [attack.name for attack in methods.values() if "public" in attack.needs_for(task)]
        if not given["public_images"] and threat.public and learners:
            raise DataError(
                field="public_images", value=0, expected=f"1 or more: {learners[0]} learns from public images"
            )
        if images.public is None and threat.public and learners:
            taken = f"{2 * images.y.numel():,} members and non-members"
            raise DataError(
                field="data",
                value=given["data"],
                expected=f"more images than the {taken}: {learners[0]} learns from others",
            )
        audit = partial(
            audit_membership,
            task,
            images.x,
            images.y,
            non_members=(images.non_members, images.y),
            public=images.public,
            training=training,
            threat=threat,
            seed=given["seed"],
            folder=Path(given["out"]) / NAME,
        )
        results = _audit_all(audit, methods, defenses, quiet=given["quiet"])
    return results, images.source


def _audit_all(
    audit: Callable[..., MembershipAudit],
    methods: Mapping[str, MembershipAttack],
    defenses: Sequence[str],
    *,
    quiet: bool,
) -> list[MembershipAudit]:
    """The audits, sorted by defence; those of one method share their control."""
    results: list[MembershipAudit] = []
    order = ("none", *(name for name in defenses if name != "none"))
    done, total = 0, len(methods) * len(order)
    with progress_bar(quiet=quiet) as bar:
        try:
            for text, attack in methods.items():
                control = None
                for defense in order:
                    title = f"{defense}, {attack.name} ({done + 1} of {total}): simulated clients"
                    line = bar.add_task(title, total=None)
                    result = audit(
                        defense=defense, attack=attack, control=control, on_simulated=_shown_on(bar, line)
                    )
                    bar.remove_task(line)
                    result = replace(result, attack=_shown(text, attack))
                    control, done = control or result, done + 1
                    if defense in defenses:
                        results.append(result)
                    sentence = f"{result.sentence.removesuffix('.')}, {result.seconds:.1f} s"
                    bar.console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            bar.stop()
            raise stopped_audit(done, total) from None
    return sorted(results, key=lambda result: defenses.index(result.defense))


def _shown_on(bar: Progress, line: TaskID) -> Callable[[int], None]:
    """What shows the number of simulated clients on a line of a progress bar."""
    return lambda clients: bar.update(line, completed=clients)


def _shown(text: str, attack: MembershipAttack) -> str:
    """The method with the settings that were given."""
    settings = {name: value for name, value in parse_settings("attack", text)[1].items() if name != "method"}
    given = ",".join(f"{name}={value}" for name, value in settings.items())
    return f"{attack.name}:{given}" if given else attack.name


def check_membership_options(command: typer.Context, members: Sequence[str], others: Sequence[str]) -> None:
    """Raise a DataError if an option was given that says nothing for these attacks.

    Args:
        command: The command that was run.
        members: The membership attacks.
        others: The other attacks.

    Raises:
        DataError: It was.
    """
    foreign: Sequence[str] = () if members else ONLY_MEMBERSHIP
    problem = f"applies to membership audits only: add --attack {NAME}"
    if members and not others:
        foreign, problem = ONLY_RECONSTRUCTION, "does not apply to a membership audit"
    for name in foreign:
        if is_given(command, name):
            raise DataError(field=name, value=command.params[name], problem=problem)
