"""The part of `refiner audit` that asks questions about clients' data instead of reconstructing them."""

from pathlib import Path

import torch
import typer

from refiner.attacks import ATTACKS
from refiner.audit.auto_attacks import ALL, AUTO
from refiner.checks import unknown_name
from refiner.cli import attribute_audit, membership_audit
from refiner.cli.attribute_audit import OF_OTHER_CLIENTS, OPTIONS, answer_attribute, attribute_attack
from refiner.cli.common import console, print_json
from refiner.cli.inference_answers import InferenceAnswers, joint_page
from refiner.cli.membership_audit import answer_membership, check_membership_options, is_membership
from refiner.cli.tabular import check_table_options, is_given
from refiner.errors import DataError
from refiner.report import write_page


def inference_of(command: typer.Context, device: torch.device) -> tuple[list[InferenceAnswers], list[str]]:
    """Return the answers to the questions that the options of `refiner audit` ask.

    If they ask for nothing else, the answers are written and printed.

    Args:
        command: The command that was run.
        device: Where to compute.

    Returns:
        The answers, and the attacks of the command that reconstruct.

    Raises:
        RefinerError: An option or the data are wrong.
    """
    attacks: list[str] = command.params["attack"] or []
    members = [text for text in attacks if is_membership(text)]
    about_attribute = attribute_attack(command, attacks)
    others = [text for text in attacks if text not in (*members, about_attribute)]
    further = (AUTO, ALL, membership_audit.NAME, attribute_audit.NAME)
    for name in (text.partition("+")[0].partition(":")[0] for text in others):
        if name not in ATTACKS and name not in further:
            raise unknown_name(name, (*ATTACKS, *further), "attack")
    if about_attribute and not members and not others:
        check_table_options(command, OPTIONS, "an attribute")
    else:
        check_membership_options(command, members, others)
        for name in OF_OTHER_CLIENTS if about_attribute else ():
            if is_given(command, name):
                problem = "does not apply to an attribute: audit it in a command of its own"
                raise DataError(field=name, value=command.params[name], problem=problem)
    answers = []
    if members:
        answers.append(answer_membership(command, members, device))
    if about_attribute:
        answers.append(answer_attribute(command, about_attribute, device))
    if answers and not others:
        _finish(answers, Path(command.params["out"]), as_json=command.params["as_json"])
    return answers, others


def _finish(answers: list[InferenceAnswers], out: Path, *, as_json: bool) -> None:
    """Write the report and the records, and print the tables or the records."""
    page = write_page(out / "report.html", joint_page(answers))
    for answer in answers:
        answer.save(out)
    if as_json:
        print_json({**{answer.question: answer.record for answer in answers}, "report": page})
        return
    for answer in answers:
        answer.show()
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
