"""`refiner audit --attack membership[:method=NAME]`: do uploads tell which images a client trained on?"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import typer
from rich.progress import Progress, TaskID

from refiner.audit import MembershipAudit, Protocol, Training, audit_membership
from refiner.audit.membership.images import load_membership_images
from refiner.audit.membership.report import (
    COLUMNS,
    membership_rows,
    membership_sections,
    strongest,
    write_membership_report,
)
from refiner.checks import integer
from refiner.cli.audit_steps import checked_defenses, threat_model
from refiner.cli.common import console, print_json
from refiner.cli.interrupt import stopped_audit
from refiner.cli.model_options import parse_numbers
from refiner.cli.progress import progress_bar
from refiner.cli.tabular import is_given, print_table
from refiner.core import Task
from refiner.core.determinism import deterministic_algorithms
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.inference import MembershipAttack, make_membership_attack
from refiner.models import build_model
from refiner.models.build import check_model_classes
from refiner.registry import parse_settings
from refiner.report import Section

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


@dataclass(frozen=True)
class MembershipRun:
    """The membership audits of one command, which may be none."""

    results: list[MembershipAudit]
    source: str
    """Where their images come from."""
    others: list[str]
    """The other attacks of the command."""

    @property
    def is_all(self) -> bool:
        """Whether the command has no other attacks."""
        return bool(self.results) and not self.others

    def sections(self) -> Sequence[Section]:
        """The sections of a report."""
        return membership_sections(self.results) if self.results else ()

    def record(self) -> dict[str, object]:
        """The audits as JSON values; empty if there are none."""
        audits = [result.record() for result in self.results]
        return {"membership": {"source": self.source, "audits": audits}} if audits else {}

    def save(self, out: Path) -> None:
        """Write `membership/results.json` below `out`, if there are audits."""
        if self.results:
            text = json.dumps(self.record()[NAME], indent=1, ensure_ascii=False)
            # `refiner compare` reads the files in the folder itself, which are audits of images.
            write_atomically(out / NAME / "results.json", f"{text}\n".encode())

    def print(self) -> None:
        """Print the table of the audits, and a sentence for each defence."""
        if self.results:
            hidden = () if console.width >= _WIDE else ("95 % interval", "blind", "balanced accuracy")
            print_table(COLUMNS, membership_rows(self.results), ("defence", "attack", "verdict"), hidden)
        for result in strongest(self.results):
            console.print(result.sentence, highlight=False, markup=False)


def membership_of(command: typer.Context, device: torch.device) -> MembershipRun:
    """Return the membership audits that the options of `refiner audit` ask for.

    If they ask for nothing else, the results are written and printed.

    Args:
        command: The command that was run.
        device: Where to compute.

    Raises:
        RefinerError: An option or the data are wrong.
    """
    attacks: list[str] = command.params["attack"] or []
    members = [name for name in attacks if is_membership(name)]
    others = [name for name in attacks if not is_membership(name)]
    _check_options(command, members, others)
    if not members:
        return MembershipRun([], "", others)
    results, source = _run(command, members, device)
    run, out = MembershipRun(results, source, others), Path(command.params["out"])
    if run.is_all:
        page = write_membership_report(out / "report.html", results, source)
        run.save(out)
        if command.params["as_json"]:
            print_json({**run.record(), "report": page})
        else:
            run.print()
            console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    return run


def _run(
    command: typer.Context, attacks: Sequence[str], device: torch.device
) -> tuple[list[MembershipAudit], str]:
    """Return the audits of all defences against all membership attacks, and the source of the images.

    Args:
        command: The command that was run.
        attacks: The options `--attack` that are membership attacks.
        device: Where to compute.

    Raises:
        RefinerError: An option or the data are wrong.
    """
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


def _check_options(command: typer.Context, members: Sequence[str], others: Sequence[str]) -> None:
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
