"""Verdicts of membership audits: intervals against chance and the blind baseline, and the reason for none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from refiner.audit import MembershipAudit
from refiner.audit.attribute.report import DEFINITIONS as ATTRIBUTE_DEFINITIONS
from refiner.audit.membership.report import (
    DEFINITIONS,
    membership_sections,
    strongest,
    write_membership_report,
)
from refiner.audit.membership.verdict import membership_verdict
from refiner.metrics import Estimate
from refiner.report import Table

FAIR = (0.5, 0.45, 0.55)
WORKS = (0.9, 0.85, 0.95)
LABELS = "non-members have other labels than members"


def result(members: Sequence[float], **changed: Any) -> MembershipAudit:
    """An audit of forty clients with these scores of members, and non-members who score 0 and 1."""
    known = MembershipAudit(
        defense="gq", attack="alignment", clients=40, batch=len(members), rounds=1, epochs=1,
        members=torch.tensor([members] * 40), non_members=torch.tensor([[0.0, 1.0]] * 40),
        undefended=Estimate(*WORKS), blind=Estimate(*FAIR), same_labels=True, seconds=0.0, settings={},
    )  # fmt: skip
    return replace(known, **changed)


@pytest.mark.parametrize(
    ("auc", "undefended", "blind", "level", "reason"),
    [
        # What is found needs no control.
        ((0.995, 0.99, 0.997), FAIR, FAIR, "found", ""),
        ((0.08, 0.04, 0.16), FAIR, FAIR, "reversed", ""),
        (FAIR, FAIR, FAIR, "no verdict", "finds no members in undefended uploads either"),
        (FAIR, WORKS, FAIR, "not found", ""),
        # What the blind baseline explains is not found, in either direction.
        ((0.8, 0.75, 0.85), WORKS, (0.8, 0.7, 0.84), "no verdict", "explained by the blind AUC"),
        ((0.9, 0.85, 0.95), WORKS, (0.8, 0.7, 0.84), "found", ""),
        ((0.15, 0.1, 0.2), WORKS, (0.2, 0.1, 0.3), "no verdict", "explained by the blind AUC"),
        ((0.15, 0.1, 0.2), WORKS, (0.3, 0.25, 0.35), "reversed", ""),
        ((0.15, 0.1, 0.2), WORKS, (0.8, 0.7, 0.9), "reversed", ""),
        (FAIR, WORKS, (0.92, 0.9, 0.94), "no verdict", "finds no members in undefended uploads either"),
        ((0.9, None, None), (0.9, None, None), None, "no verdict", "a single client has no interval"),
    ],
)
def test_a_verdict_follows_from_intervals(
    auc: tuple[float, float | None, float | None],
    undefended: tuple[float, float | None, float | None],
    blind: tuple[float, float, float] | None,
    level: str,
    reason: str,
) -> None:
    baseline = None if blind is None else Estimate(*blind)
    verdict = membership_verdict(Estimate(*auc), Estimate(*undefended), baseline, same_labels=True)
    assert verdict.level == level and reason in verdict.reason and bool(verdict.reason) == bool(reason)


@pytest.mark.parametrize("auc", [WORKS, FAIR, (0.1, 0.05, 0.15)])
def test_other_labels_of_non_members_leave_no_verdict(auc: tuple[float, float, float]) -> None:
    """An attack that only sees which classes a client has looks like one that recognises its images."""
    verdict = membership_verdict(Estimate(*auc), Estimate(*WORKS), Estimate(*FAIR), same_labels=False)
    assert verdict.level == "no verdict" and LABELS in verdict.reason


def test_sentence_record_and_report_say_why_there_is_no_verdict(tmp_path: Path) -> None:
    found, unfair = result([2.0, 3.0]), result([2.0, 3.0], same_labels=False)
    assert found.level == "found" and LABELS not in found.sentence and found.record()["reason"] == ""
    assert unfair.level == "no verdict" and LABELS in unfair.sentence and LABELS in unfair.record()["reason"]
    page = write_membership_report(tmp_path / "report.html", [unfair]).read_text()
    assert page.count(LABELS) >= 2  # in the summary, and beside the table
    table = membership_sections([unfair])[0]
    assert isinstance(table, Table) and LABELS in table.note


def test_the_summary_is_of_the_attack_furthest_from_chance() -> None:
    nothing, reversed_ = result([0.0, 1.0]), result([-1.0, 0.0], attack="loss")
    assert (nothing.auc.value, reversed_.auc.value) == (0.5, 0.125) and reversed_.level == "reversed"
    assert strongest([nothing, reversed_]) == strongest([reversed_, nothing]) == [reversed_]


def test_the_summary_is_of_an_attack_with_a_finding() -> None:
    explained = result([2.0, 3.0], blind=Estimate(0.99, 0.9, 1.0), attack="loss")
    weaker = result([0.5, 2.0])
    assert explained.level == "no verdict" and weaker.level == "found"
    assert explained.auc.value > weaker.auc.value and strongest([explained, weaker]) == [weaker]


def test_reports_define_every_verdict() -> None:
    for definitions in (DEFINITIONS, ATTRIBUTE_DEFINITIONS):
        text = dict(definitions)["verdict"]
        assert all(f"{level}: " in text for level in ("Found", "Reversed", "Not found", "No verdict"))
