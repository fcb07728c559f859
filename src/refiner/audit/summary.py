"""The main results of audits in a few sentences."""

from collections.abc import Mapping, Sequence

from refiner.audit.display_names import pair_names, settings_text
from refiner.audit.result import AuditResult
from refiner.metrics.verdict import LEVELS

_SETTING_NAMES = {"total_variation": "total variation", "lr": "learning rate"}
_CRITERIA = {"psnr": "PSNR", "ssim": "SSIM", "identification": "identification"}


def summary(results: Sequence[AuditResult]) -> str:
    """Return one sentence per defence on its worst attack, the blind guess, and caveats."""
    sentences = [_sentence(name, _worst(audits)) for name, audits in _by_defense(results).items()]
    blind = results[0].means["blind_psnr"].value
    sentences.append(f"A blind guess, made without any gradient, scores {blind:.1f} dB.")
    return " ".join([*sentences, *caveats(results)])


def caveats(results: Sequence[AuditResult]) -> list[str]:
    """Return sentences on what the verdicts do not show."""
    sentences = []
    if attack_works(results) is None:
        sentences.append(
            "Whether the attack works on this model at all is unknown: audit the defence `none` as well."
        )
    for attack in dict.fromkeys(result.attack for result in results):
        if attack_works(results, attack) is False:
            sentences.append(
                f"The {attack} attack fails even without a defence, so its results say nothing about the "
                "defences: use more iterations or another attack."
            )
    for (defense, attack), result in zip(pair_names(results), results, strict=True):
        if any(result.diverged):
            uploads = f"{sum(result.diverged)} of {len(result.diverged)} uploads"
            sentences.append(
                f"{attack} diverged on {uploads} of {defense}, which does not mean that they are protected."
            )
    for attack in dict.fromkeys(result.attack for result in results if _uses_bundled_generator(result)):
        sentences.append(
            f"{attack} used the bundled generator, which was trained on CIFAR-10; other data need another "
            "one."
        )
    if any(identification_not_counted(result) for result in results):
        sentences.append(
            f"Identification does not count here: among {results[0].candidates} candidates it can't be "
            "distinguished from chance."
        )
    return [*sentences, *guarantees(results)]


def _uses_bundled_generator(result: AuditResult) -> bool:
    settings = result.settings.get("attack")
    return isinstance(settings, Mapping) and "generator" in settings and settings["generator"] is None


def guarantees(results: Sequence[AuditResult]) -> list[str]:
    """Return sentences on which defences have a proven guarantee; most have none."""
    sentences, unproven = [], []
    for name, (result, *_) in _by_defense(results).items():
        settings = result.settings.get("defense")
        if isinstance(settings, Mapping) and settings.get("proven"):
            sentences.append(f"Proven for {name}: {settings['guarantee']}.")
        elif result.defense != "none":
            unproven.append(name)
    if unproven:
        sentences.append(
            f"Nothing is proven for {_enumeration(unproven)}: these are measurements, and a stronger attack "
            "may reconstruct more."
        )
    return sentences


def attack_works(results: Sequence[AuditResult], attack: str | None = None) -> bool | None:
    """Return whether this attack, or any, exposes undefended images; None if that was not tried."""
    undefended = [
        result for result in results if result.defense == "none" and attack in (None, result.attack)
    ]
    return any(result.verdict.level == "exposed" for result in undefended) if undefended else None


def identification_not_counted(result: AuditResult) -> bool:
    """Return whether identification was tried among too few candidates to be distinguished from chance."""
    votes = [finding.verdict.votes for finding in result.findings]
    return result.candidates is not None and not any("identification" in vote for vote in votes)


def exposed_by(result: AuditResult) -> str:
    """Return the criteria by which images were exposed beyond chance, as "by PSNR and SSIM", or nothing."""
    exposed = [finding.verdict for finding in result.findings if finding.verdict.level == "exposed"]
    if result.verdict.by_chance:
        exposed = [
            verdict for verdict in exposed if "exposed" in (verdict.votes["psnr"], verdict.votes["ssim"])
        ]
    criteria = [
        name
        for vote, name in _CRITERIA.items()
        if any(verdict.votes.get(vote) == "exposed" for verdict in exposed)
    ]
    if not criteria:
        return ""
    return f"by {_enumeration(criteria)}" if len(criteria) > 1 else f"by {criteria[0]} alone"


def verdict_note(result: AuditResult) -> str:
    """Return what "exposed" means with the thresholds of this audit, and what the attacker knows."""
    metrics = result.settings.get("metrics")
    thresholds = metrics if isinstance(metrics, Mapping) else {}
    text = (
        f"An image is exposed if its reconstruction reaches a PSNR of {thresholds.get('psnr', 0):g} dB or an "
        f"SSIM of {thresholds.get('ssim', 0):g}, and scores higher than the best blind guess"
    )
    if result.candidates is not None and not identification_not_counted(result):
        text += (
            f"; or if it identifies the image: among {result.candidates} images the original is so similar "
            "to the reconstruction that chance explains it with a probability of at most "
            f"{100 * thresholds.get('identified', 0):g} %"
        )
    text += ". Slightly below these thresholds it is borderline, otherwise protected"
    threat = result.settings.get("threat")
    granted = (
        [name for name, is_granted in threat.items() if is_granted] if isinstance(threat, Mapping) else []
    )
    also = f", and is given {_enumeration(granted)}" if granted else ""
    text += f". The attacker sees the upload, the model and the batch size{also}; "
    if result.tuned is None:
        return text + "the attack is not adapted to the defence."
    names = [_SETTING_NAMES.get(name, name) for name in result.tuned.chosen]
    were = "were" if len(names) > 1 else "was"
    return (
        f"{text}its {_enumeration(names)} {were} tuned for each defence on "
        f"{_other_images(result.tuned.images)}, otherwise the attack is not adapted to the defence."
    )


def tuning_text(result: AuditResult) -> str:
    """Return the settings that the attack was tuned to, and on how many images; empty if it was not."""
    tuning = result.tuned
    if tuning is None:
        return ""
    return f"{settings_text(tuning.chosen)} on {_other_images(tuning.images)}"


def _other_images(count: int) -> str:
    return f"{count} other image{'' if count == 1 else 's'}"


def _enumeration(names: Sequence[str]) -> str:
    """Return names as text: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _by_defense(results: Sequence[AuditResult]) -> dict[str, list[AuditResult]]:
    """Return the audits of every defence, by its name with the settings that differ from the defaults."""
    audits: dict[str, list[AuditResult]] = {}
    for (name, _), result in zip(pair_names(results), results, strict=True):
        audits.setdefault(name, []).append(result)
    return audits


def _worst(results: Sequence[AuditResult]) -> AuditResult:
    return min(
        results, key=lambda r: (LEVELS.index(r.verdict.level), -r.verdict.share, -r.means["psnr"].value)
    )


def _sentence(defense: str, result: AuditResult) -> str:
    total, by_chance = len(result.findings), result.verdict.by_chance
    exposed = result.verdict.exposed - by_chance
    condition = "Without a defence" if result.defense == "none" else f"With {defense}"
    criteria = f" {exposed_by(result)}" if exposed else " beyond chance" if by_chance else ""
    count = "none" if not exposed else f"all {total}" if exposed == total else f"{exposed}"
    of_total = "" if exposed == total else f" of {total}"
    noun = "image" if total == 1 else "images"
    chance = ""
    if by_chance:
        more = " more" if exposed else ""
        chance = f" (identification alone identifies {by_chance}{more}, which chance explains)"
    return (
        f"{condition}, the {result.attack} attack exposes {count}{of_total} {noun}{criteria}{chance}: "
        f"mean PSNR {result.means['psnr'].value:.1f} dB, mean SSIM {result.means['ssim'].value:.2f}."
    )
