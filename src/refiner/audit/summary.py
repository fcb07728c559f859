"""The main result in plain sentences."""

from collections.abc import Mapping, Sequence

from refiner.audit.display_names import pair_names, point
from refiner.audit.result import AuditResult
from refiner.metrics.verdict import LEVELS

_LONG = {"total_variation": "total variation", "lr": "learning rate"}
_VOTES = {"psnr": "PSNR", "ssim": "SSIM", "identification": "identification"}


def summary(results: Sequence[AuditResult]) -> str:
    """For each defence the attack that did worst to it, what a blind guess has, and what can't be told."""
    told = [_sentence(name, _worst(of_it)) for name, of_it in _by_defense(results).items()]
    blind = results[0].means["blind_psnr"].value
    return " ".join([*told, f"A blind guess has {blind:.1f} dB.", *caveats(results)])


def caveats(results: Sequence[AuditResult]) -> list[str]:
    """Why a verdict may say less than it seems to."""
    told = []
    if attack_works(results) is None:
        told.append("Whether the attack works on this model is not shown: audit `none` beside it.")
    for attack in dict.fromkeys(result.attack for result in results):
        if attack_works(results, attack) is False:
            told.append(
                f"{attack} fails without any defence, so this says nothing of the others; try another one, "
                "or more iterations."
            )
    for (defense, attack), result in zip(pair_names(results), results, strict=True):
        if any(result.diverged):
            lost = f"{sum(result.diverged)} of {len(result.diverged)} uploads"
            told.append(f"{attack} diverged on {lost} of {defense}, which is no protection.")
    if any(_paints_cifar(result) for result in results):
        told.append("ggl painted with refiner's own generator, of CIFAR-10; for other data it needs another.")
    if any(voteless(result) for result in results):
        told.append(f"Identification has no vote: {results[0].candidates} candidates are too few to tell.")
    return [*told, *proven(results)]


def _paints_cifar(result: AuditResult) -> bool:
    held = result.settings.get("attack")
    return result.attack == "ggl" and isinstance(held, Mapping) and held.get("generator") is None


def proven(results: Sequence[AuditResult]) -> list[str]:
    """What is proven of the defences; of most nothing is."""
    told, rest = [], 0
    for name, (result, *_) in _by_defense(results).items():
        held = result.settings.get("defense")
        if isinstance(held, Mapping) and held.get("proven"):
            told.append(f"Of {name} is proven: {held['guarantee']}.")
        elif result.defense != "none":
            rest += 1
    whom = "the others hide" if told else "a defence hides here"
    return told + [f"Nothing is proven of what {whom}: it is measured."] * bool(rest)


def attack_works(results: Sequence[AuditResult], attack: str | None = None) -> bool | None:
    """Whether this attack, or any, exposes what no defence hides; None if that was not tried."""
    bare = [result for result in results if result.defense == "none" and attack in (None, result.attack)]
    return any(result.verdict.level == "exposed" for result in bare) if bare else None


def voteless(result: AuditResult) -> bool:
    """Whether identification was tried, but among too few candidates to be told from luck."""
    votes = [finding.verdict.votes for finding in result.findings]
    return result.candidates is not None and not any("identification" in vote for vote in votes)


def why(result: AuditResult) -> str:
    """Which votes exposed those that chance does not explain: "by PSNR and identification", or nothing."""
    exposed = [finding.verdict for finding in result.findings if finding.verdict.level == "exposed"]
    if result.verdict.by_chance:
        exposed = [
            verdict for verdict in exposed if "exposed" in (verdict.votes["psnr"], verdict.votes["ssim"])
        ]
    named = [
        name
        for vote, name in _VOTES.items()
        if any(verdict.votes.get(vote) == "exposed" for verdict in exposed)
    ]
    if not named:
        return ""
    return "by " + (
        " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else f"{named[0]} alone"
    )


def note(result: AuditResult) -> str:
    """What an image's verdict means, with the thresholds of this audit."""
    limits = result.settings.get("metrics")
    held = limits if isinstance(limits, Mapping) else {}
    told = (
        f"An image is exposed if its reconstruction has a PSNR of {held.get('psnr', 0):g} dB or an SSIM of "
        f"{held.get('ssim', 0):g}, and more than the best blind guess at it"
    )
    if result.candidates is not None and not voteless(result):
        told += f"; or if it singles the original out among {result.candidates} images"
    threat = result.settings.get("threat")
    granted = [name for name, given in threat.items() if given] if isinstance(threat, Mapping) else []
    also = f", and has {' and '.join(granted)}" if granted else ""
    told += f". The attacker sees the upload, the model and the size of the batch{also}; "
    if result.tuned is None:
        return told + "it does not know the defence."
    names = [_LONG.get(name, name) for name in result.tuned.chosen]
    were, images = "were" if len(names) > 1 else "was", _others(result.tuned.images)
    return (
        f"{told}its {' and '.join(names)} {were} tuned for each defence on {images}, else it does not know "
        "the defence."
    )


def tuned(result: AuditResult) -> str:
    """What the attacker was tuned to, and on what; nothing if it was not."""
    found = result.tuned
    if found is None:
        return ""
    return f"{point(found.chosen)} on {_others(found.images)}"


def _others(count: int) -> str:
    return f"{count} other image{'' if count == 1 else 's'}"


def _by_defense(results: Sequence[AuditResult]) -> dict[str, list[AuditResult]]:
    """The audits of every defence, by its name and the settings that tell it from others of that name."""
    found: dict[str, list[AuditResult]] = {}
    for (name, _), result in zip(pair_names(results), results, strict=True):
        found.setdefault(name, []).append(result)
    return found


def _worst(results: Sequence[AuditResult]) -> AuditResult:
    return min(
        results, key=lambda r: (LEVELS.index(r.verdict.level), -r.verdict.share, -r.means["psnr"].value)
    )


def _sentence(defense: str, result: AuditResult) -> str:
    count, lucky = len(result.findings), result.verdict.by_chance
    exposed = result.verdict.exposed - lucky
    whom = "Without a defence" if result.defense == "none" else f"With {defense}"
    how = f" {why(result)}" if exposed else " beyond chance" if lucky else ""
    many = "none" if not exposed else f"all {count}" if exposed == count else f"{exposed}"
    of = "" if exposed == count else f" of {count}"
    noun = "image" if count == 1 else "images"
    more = " more" if exposed else ""
    named = f"; identification alone names {lucky}{more}, no more than chance explains" if lucky else ""
    return (
        f"{whom}, {result.attack} exposes {many}{of} {noun}{how}, "
        f"at {result.means['psnr'].value:.1f} dB and an SSIM of {result.means['ssim'].value:.2f}{named}."
    )
