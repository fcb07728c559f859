"""The control of an audit: the same attack on undefended uploads, without which there is no verdict."""

from collections.abc import Sequence
from dataclasses import replace

from refiner.audit.result import AuditResult
from refiner.audit.result_records import Control
from refiner.metrics import GroupVerdict, Thresholds, Verdict, judge_group
from refiner.metrics.verdict import Level

UNDEFENDED = "none"
NO_CONTROL = "no control was run"
FAILED = "the attack fails on undefended uploads"


def as_control(undefended: AuditResult, thresholds: Thresholds) -> Control:
    """Return how an attack did on undefended uploads.

    Args:
        undefended: The result of the attack without a defence.
        thresholds: The thresholds with which the images were judged.

    Returns:
        The level and the shares, as measured.
    """
    measured = _measured(undefended, thresholds)
    return Control(measured.level, measured.visible, measured.identifiable, undefended.means["psnr"].value)


def conclude(result: AuditResult, control: Control | None, thresholds: Thresholds) -> AuditResult:
    """Return the result with the verdicts that its control allows.

    An attack that reveals nothing of undefended uploads says nothing about a defence, and neither does one
    whose control was not run: there is no verdict then, on no image and not on the defence. An attack that
    diverged may have failed for that reason: its uploads count as not visible, and the verdict can only be
    "visible"; otherwise there is none.

    Args:
        result: A result; its present verdict is ignored.
        control: The control of the same attack, victims, model and settings. None if it was not run; an
            undefended result is its own control and needs none.
        thresholds: The thresholds with which the images were judged.

    Returns:
        A copy with `control` and all verdicts.
    """
    measured = _measured(result, thresholds)
    is_undefended = result.defense == UNDEFENDED
    reference = as_control(result, thresholds) if is_undefended else control
    reason = _why_not(result, measured, reference)
    verdict = measured if reason is None else replace(measured, level="no verdict", reason=reason)
    findings = tuple(
        replace(finding, verdict=_image_verdict(finding.verdict, reason, result.diverged[finding.victim]))
        for finding in result.findings
    )
    return replace(result, control=reference, verdict=verdict, findings=findings)


def _measured(result: AuditResult, thresholds: Thresholds) -> GroupVerdict:
    verdicts: Sequence[Verdict] = [finding.verdict for finding in result.findings]
    return judge_group(verdicts, thresholds, result.victims)


def _why_not(result: AuditResult, measured: GroupVerdict, control: Control | None) -> str | None:
    """Why there is no verdict; None if there is one."""
    if control is None:
        return NO_CONTROL
    if any(result.diverged) and measured.level != "visible":
        return f"the attack diverged on {sum(result.diverged)} of {len(result.diverged)} uploads"
    return None if control.works else FAILED


def _image_verdict(verdict: Verdict, reason: str | None, diverged: bool) -> Verdict:
    level: Level = verdict.measured
    if reason is not None or (diverged and level != "visible"):
        level = "no verdict"
    return replace(verdict, level=level)
