"""What the verdicts of audits do not show, and what is proven."""

import math
from collections.abc import Mapping, Sequence

from refiner.audit.control import NO_CONTROL
from refiner.audit.display_names import enumeration, pair_names
from refiner.audit.result import AuditResult
from refiner.metrics.thresholds import PAPER_THRESHOLDS


def caveats(results: Sequence[AuditResult]) -> list[str]:
    """Return sentences on what the verdicts do not show."""
    sentences = []
    if any(result.verdict.reason == NO_CONTROL for result in results):
        sentences.append(
            "Whether the attack works on this model at all is unknown: run its control, or audit the defence "
            "`none` as well."
        )
    failing, unseen = [], []
    for attack in dict.fromkeys(result.attack for result in results):
        controls = [result.control for result in results if result.attack == attack and result.control]
        if any(not control.works for control in controls):
            failing.append(attack)
        elif any(control.level == "identifiable" for control in controls):
            unseen.append(attack)
    if failing:
        several = len(failing) > 1
        sentences.append(
            f"The {_attacks(failing)} {'fail' if several else 'fails'} even without a defence, so "
            f"{'their' if several else 'its'} results say nothing about the defences: use more iterations or "
            "another attack."
        )
    if unseen:
        several = len(unseen) > 1
        sentences.append(
            f"Even without a defence the {_attacks(unseen)} {'show' if several else 'shows'} hardly any "
            f"image: only what {'they identify' if several else 'it identifies'} says something about the "
            "defences."
        )
    for (defense, attack), result in zip(pair_names(results), results, strict=True):
        if any(result.diverged):
            uploads = f"{sum(result.diverged)} of {len(result.diverged)} uploads"
            sentences.append(
                f"The attack {attack} diverged on {uploads} of {defense}, which does not mean that they are "
                "protected."
            )
    for attack in dict.fromkeys(result.attack for result in results if _uses_bundled_generator(result)):
        sentences.append(
            f"The {attack} attack used the bundled generator, which was trained on CIFAR-10; other data need "
            "another one."
        )
    unidentified = (identification_caveat(result) for result in results)
    return [*sentences, *[text for text in unidentified if text][:1]]


def identification_caveat(result: AuditResult) -> str:
    """Return why an audit says nothing about identification; empty if it does."""
    if result.candidates is None:
        if len(result.findings) > 1:
            return "Identification was not measured: the metrics that were chosen leave it out."
        return (
            "Identification was not measured: there is no other image to pick the original out of; give "
            "more images of the same kind."
        )
    if any(finding.verdict.chance is not None for finding in result.findings):
        return ""
    metrics = result.settings.get("metrics")
    limit = metrics.get("identified") if isinstance(metrics, Mapping) else None
    finding = result.findings[0]
    ways = sum(rank is not None for rank in (finding.rank_pixels, finding.rank_lpips))
    needed = math.ceil(ways * result.batch / (limit or PAPER_THRESHOLDS.identified) - 1e-6)
    return (
        f"Identification does not count here: among {result.candidates} candidates it can't be "
        f"distinguished from chance; it takes {needed:,} images of the same kind."
    )


def guarantees(audits: Mapping[str, Sequence[AuditResult]]) -> list[str]:
    """Return sentences on which defences, by name, have a proven guarantee; most have none."""
    sentences, unproven = [], []
    for name, (result, *_) in audits.items():
        settings = result.settings.get("defense")
        if isinstance(settings, Mapping) and settings.get("proven"):
            sentences.append(f"Proven for {name}: {settings['guarantee']}.")
        elif result.defense != "none":
            unproven.append(name)
    if unproven:
        sentences.append(
            f"Nothing is proven for {enumeration(unproven)}: these are measurements, and a stronger attack "
            "may reconstruct more."
        )
    return sentences


def _attacks(names: Sequence[str]) -> str:
    return f"{enumeration(names)} attack{'s' if len(names) > 1 else ''}"


def _uses_bundled_generator(result: AuditResult) -> bool:
    settings = result.settings.get("attack")
    return isinstance(settings, Mapping) and "generator" in settings and settings["generator"] is None
