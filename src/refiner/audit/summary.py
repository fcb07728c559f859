"""The main results of audits in a few sentences."""

from collections.abc import Iterable, Mapping, Sequence

from refiner.audit.caveats import caveats, guarantees
from refiner.audit.display_names import enumeration, pair_names, settings_text
from refiner.audit.result import AuditResult
from refiner.audit.result_records import Control, FromRobust
from refiner.metrics.verdict import LEVELS

_SETTING_NAMES = {"total_variation": "total variation", "lr": "learning rate"}


def summary(results: Sequence[AuditResult]) -> str:
    """Return what the strongest attack does without and with each defence, the blind guess, and caveats."""
    return " ".join([*main_sentences(results), *other_sentences(results)])


def main_sentences(results: Sequence[AuditResult]) -> list[str]:
    """Return one sentence on what the strongest attack does without a defence, and one for each defence."""
    defenses = by_defense(results)
    several = len({result.attack for result in results}) > 1
    sentences = []
    if all(result.defense != "none" for result in results):
        # The control of a defence that was audited alone.
        strongest = strongest_attack(results)
        if strongest.control is not None:
            sentences.append(_control_sentence(strongest, strongest.control))
    # First what the attack does without a defence.
    for name, audits in sorted(defenses.items(), key=lambda item: item[1][0].defense != "none"):
        strongest = strongest_attack(audits)
        sentences.append(_sentence(name, strongest, several))
    return sentences


def other_sentences(results: Sequence[AuditResult]) -> list[str]:
    """Return the blind guess, what is reached from robust data, what verdicts do not show, what is proven."""
    defenses = by_defense(results)
    # Measured once for each defence, whichever attack it was asked for with.
    reached = {
        name: next((audit.from_robust for audit in audits if audit.from_robust is not None), None)
        for name, audits in defenses.items()
    }
    texts = [f"{name}: {from_robust_text(known)}." for name, known in reached.items() if known is not None]
    return [blind_sentence(results), *texts, *caveats(results), *guarantees(defenses)]


def blind_sentence(results: Sequence[AuditResult]) -> str:
    """Return what a guess without any gradient scores."""
    blind = results[0].means["blind_psnr"].value
    return f"A blind guess, made without any gradient, scores {blind:.1f} dB."


def by_defense(results: Sequence[AuditResult]) -> dict[str, list[AuditResult]]:
    """Return the audits of every defence, by its name with the settings that differ from the defaults."""
    audits: dict[str, list[AuditResult]] = {}
    for (name, _), result in zip(pair_names(results), results, strict=True):
        audits.setdefault(name, []).append(result)
    return audits


def from_robust_text(reached: FromRobust) -> str:
    """Return what can be reached from the robust data themselves, as text.

    >>> from_robust_text(FromRobust(13.8, 0.35, 13.7))
    'reached from x*, the robust data themselves, by a network: 13.8 dB, top-1 35 % (Wiener filter 13.7 dB)'
    """
    psnr = "its training diverged" if reached.psnr is None else f"{reached.psnr:.1f} dB"
    text = f"reached from x*, the robust data themselves, by a network: {psnr}"
    text += "" if reached.top1 is None else f", top-1 {100 * reached.top1:.3g} %"
    text += "" if reached.wiener_psnr is None else f" (Wiener filter {reached.wiener_psnr:.1f} dB)"
    matches = {"from x*": reached.likelihood_top1, "from an upload": reached.likelihood_top1_uploads}
    rates = [f"{100 * rate:.3g} % {source}" for source, rate in matches.items() if rate is not None]
    return f"{text}; picked out of images that the attacker has: {enumeration(rates)}" if rates else text


def verdict_note(results: Sequence[AuditResult]) -> str:
    """Return what the verdicts mean with the thresholds of these audits, and what the attacker knows."""
    result = results[0]
    metrics = result.settings.get("metrics")
    limits = metrics if isinstance(metrics, Mapping) else {}
    scores = [
        f"a PSNR of {limits.get('psnr', 0):g} dB with an SSIM of {limits.get('structure', 0):g}",
        *([f"an LPIPS of {limits.get('lpips', 0):g}"] if "lpips" in limits.get("names", ()) else []),
        f"an SSIM of {limits.get('ssim', 0):g}",
    ]
    text = (
        f"An image is visible if its reconstruction reaches {', '.join(scores[:-1])} or {scores[-1]}, and is "
        "clearly better than the best blind guess of the same image"
    )
    if identification_counts(result):
        text += (
            f". It is identifiable if, of {result.candidates:,} candidates, the original is the one most "
            "similar to the reconstruction, even where nothing is visible"
        )
    threat = result.settings.get("threat")
    granted = (
        [name for name, is_granted in threat.items() if is_granted] if isinstance(threat, Mapping) else []
    )
    names = {"public": "public images", "defense": "the defence without its secret"}
    given = [names.get(name, name) for name in granted if name != "changed_model"]
    also = f", and is given {enumeration(given)}" if given else ""
    text += f". The attacker sees {_upload_text(result)}, the model and the batch size{also}"
    if "changed_model" in granted:
        text += "; it is the server, and may send clients a changed model"
    return f"{'; '.join([text, *_adaptations(results)])}."


def _upload_text(result: AuditResult) -> str:
    """Return what the attacker sees of a client, such as "the upload"."""
    protocol = result.settings.get("protocol")
    if not isinstance(protocol, Mapping):
        return "the upload"
    steps, clients = (protocol.get(name, 1) for name in ("local_steps", "summed_clients"))
    what = "the upload" if clients == 1 else f"the mean of {clients} clients' uploads only"
    return what if steps == 1 else f"{what} (after {steps} local steps)"


def _adaptations(results: Sequence[AuditResult]) -> list[str]:
    """Return how the attacks are adapted to the defences."""
    repeated, ways = [], dict[str, list[str]]()
    for attack in dict.fromkeys(result.attack for result in results):
        audits = [result for result in results if result.attack == attack]
        if (rounds := max(int(str(result.settings.get("rounds", 1))) for result in audits)) > 1:
            repeated.append(f"{attack} sees {rounds} uploads of each batch, for as many models")
        ways.setdefault(_adaptation(audits[0]), []).append(attack)
    return [*repeated, *(f"{enumeration(attacks)} {way}" for way, attacks in ways.items())]


def _adaptation(result: AuditResult) -> str:
    """Return how the attack of an audit was adapted to the defence, to follow names of attacks."""
    if "attacker images" in result.settings:
        return "learned from uploads of each defence that the attacker made"
    if result.tuned is None:
        return "did not adapt to the defences"
    tuned = enumeration([_SETTING_NAMES.get(name, name) for name in result.tuned.chosen])
    return f"had its {tuned} tuned for each defence on {_other_images(result.tuned.images)}"


def identification_counts(result: AuditResult) -> bool:
    """Return whether there were enough candidates to distinguish identification from chance."""
    return any(finding.verdict.chance is not None for finding in result.findings)


def tuning_text(result: AuditResult) -> str:
    """Return the settings that the attack was tuned to, and on how many images; empty if it was not."""
    tuning = result.tuned
    if tuning is None:
        return ""
    by_rank = ", by rank as no setting beats the blind guess" if tuning.criterion == "rank" else ""
    return f"{settings_text(tuning.chosen)} on {_other_images(tuning.images)}{by_rank}"


def _other_images(count: int) -> str:
    return f"{count} other image{'' if count == 1 else 's'}"


def strongest_attack(audits: Iterable[AuditResult]) -> AuditResult:
    """Return the audit of one defence whose attack reveals most."""
    return min(audits, key=_strength)


def _strength(result: AuditResult) -> tuple[int, int, int, float]:
    """Sort key: the attack that reveals most first."""
    verdict = result.verdict
    return (
        LEVELS.index(verdict.level),
        -verdict.visible.count,
        verdict.by_chance - verdict.identifiable.count,
        -result.means["psnr"].value,
    )


def _control_sentence(result: AuditResult, control: Control) -> str:
    """Return what the attack does without a defence, from the control of a defended result."""
    total = control.visible.total
    if not control.works:
        return f"Without a defence, the {result.attack} attack recovers nothing of {_images(total)}."
    identified = control.identifiable.count - control.visible.count
    return (
        f"Without a defence, {_recovers(result.attack, control.visible.count, identified, total)}"
        f"{_among(result, identified)} (mean PSNR {control.psnr:.1f} dB)."
    )


def _sentence(defense: str, result: AuditResult, several: bool) -> str:
    """Return what the strongest attack does with a defence, in words that need no explanation."""
    verdict, total = result.verdict, len(result.findings)
    psnr = f"mean PSNR {result.means['psnr'].value:.1f} dB"
    condition = "Without a defence" if result.defense == "none" else f"With {defense}"
    if verdict.level == "no verdict":
        return f"{condition}: no verdict, {verdict.reason} ({psnr})."
    visible = verdict.visible.count
    identified = verdict.identifiable.count - visible - verdict.by_chance
    if result.defense == "none":
        recovered = _recovers(result.attack, visible, identified, total)
        text = f"{condition}, {recovered}{_among(result, identified)}"
    else:
        attack = " to the strongest attack" if several else ""
        psnr = f"{result.attack}, {psnr}" if several else psnr
        none = "the image is not visible" if total == 1 else f"none of {total} images is visible"
        some = f"{visible} of {total} images {'is' if visible == 1 else 'are'} visible"
        every = "the image is visible" if total == 1 else f"{_all(total)} images are visible"
        text = f"{condition}, {none if not visible else every if visible == total else some}{attack}"
        if identified:
            count = f"{identified} more" if visible else f"{identified} of {total}"
            text += f"; {count} can be picked out{_candidates(result)}"
    if verdict.by_chance:
        text += f"; {verdict.by_chance} identified, no more than chance may give"
    return f"{text} ({psnr})."


def _recovers(attack: str, visible: int, identified: int, total: int) -> str:
    """Return "the inverting attack recovers all 20 images visibly"."""
    if not visible:
        return f"the {attack} attack recovers no image visibly, but {identified} of {total} can be picked out"
    images = _images(total) if visible == total else f"{visible} of {_images(total)}"
    every = f"{_all(total)} images" if visible == total > 1 else images
    more = f", and {identified} more can be picked out" if identified else ""
    return f"the {attack} attack recovers {every} visibly{more}"


def _among(result: AuditResult, identified: int) -> str:
    return _candidates(result) if identified else ""


def _candidates(result: AuditResult) -> str:
    return "" if result.candidates is None else f" of {result.candidates:,} candidates"


def _all(count: int) -> str:
    return "both" if count == 2 else f"all {count}"


def _images(count: int) -> str:
    return "the image" if count == 1 else f"{count} images"
