"""Names that tell audits apart, and their settings without repetition."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from refiner.audit.result import AuditResult

Pair = tuple[str, str]


def pair_names(results: Sequence[AuditResult]) -> list[Pair]:
    """Defence and attack of every audit; where two have the same, what differs in their settings is added."""
    plain = [(result.defense, result.attack) for result in results]
    count = Counter(plain)
    names: list[Pair] = []
    for result, pair in zip(results, plain, strict=True):
        defense, attack = pair
        if count[pair] > 1:
            rivals = [r for r, other in zip(results, plain, strict=True) if other == pair]
            defense += _apart("defense", result, rivals)
            attack += _apart("attack", result, rivals)
        # What still is the same differs in model or data: numbers tell them apart.
        again, first = 2, defense
        while (defense, attack) in names:
            defense, again = f"{first}, {again}", again + 1
        names.append((defense, attack))
    return names


def shared_settings(names: Sequence[Pair], results: Sequence[AuditResult]) -> dict[str, object]:
    """Every section of settings once where the audits agree, else once for each that differs."""
    told: dict[str, object] = {}
    for section in dict.fromkeys(key for result in results for key in result.settings):
        values = [result.settings.get(section) for result in results]
        if all(value == values[0] for value in values):
            told[section] = values[0]
            continue
        for pair, value in zip(names, values, strict=True):
            side = {"defense": pair[0], "attack": pair[1]}.get(section, " against ".join(pair))
            told[f"{section}: {side}"] = value
    told["seconds"] = {
        " against ".join(pair): asdict(result.seconds) for pair, result in zip(names, results, strict=True)
    }
    return told


def _apart(part: str, result: AuditResult, rivals: Sequence[AuditResult]) -> str:
    """The settings of a part in which the rivals differ, in brackets."""
    held = [settings if isinstance(settings := r.settings.get(part), Mapping) else {} for r in rivals]
    own = held[list(rivals).index(result)]
    keys = [key for key in own if any(other.get(key) != own[key] for other in held)]
    return f" ({', '.join(f'{key} = {own[key]}' for key in keys)})" if keys else ""
