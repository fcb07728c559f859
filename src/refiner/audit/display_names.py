"""Names that tell audits apart, and their settings without repetition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from refiner.attacks import Attack, make_attack
from refiner.audit.result import AuditResult
from refiner.audit.serialization import plain
from refiner.defenses import Defense, make_defense
from refiner.errors import RefinerError

Pair = tuple[str, str]
_SHORT = {"total_variation": "TV"}


def pair_names(results: Sequence[AuditResult]) -> list[Pair]:
    """Defence and attack of every audit, each with the settings in which it differs from its default."""
    names: list[Pair] = []
    for result in results:
        defense = result.defense + _changed(result, "defense", result.defense, make_defense)
        attack = result.attack + _changed(result, "attack", result.attack, make_attack)
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
    for pair, result in zip(names, results, strict=True):
        if result.tuned is not None:
            tried = [
                ({key: value for key, value in trial.items() if key != "psnr"}, trial["psnr"])
                for trial in result.tuned.trials
            ]
            scores = {f"PSNR of {point(settings)}": round(score, 2) for settings, score in tried}
            told[f"tuned: {' against '.join(pair)}"] = {**result.tuned.chosen, **scores}
    told["seconds"] = {
        " against ".join(pair): asdict(result.seconds) for pair, result in zip(names, results, strict=True)
    }
    return told


def point(settings: Mapping[str, float]) -> str:
    """Settings of an attack in a few words.

    >>> point({"total_variation": 0.1, "lr": 0.03})
    'TV 0.1, lr 0.03'
    """
    return ", ".join(f"{_SHORT.get(name, name)} {value:g}" for name, value in settings.items())


def _changed(result: AuditResult, part: str, name: str, make: Callable[[str], Attack | Defense]) -> str:
    """The settings of a part that are not those it has by its name alone, in brackets."""
    held = result.settings.get(part)
    try:
        default = plain(make(name).settings())
    except RefinerError:  # one of the user's own, which has no name here
        return ""
    if not isinstance(held, Mapping):
        return ""
    chosen = result.tuned.chosen if part == "attack" and result.tuned is not None else {}
    changed = [
        f"{key} = {held[key]}"
        for key in default
        if key in held and key not in chosen and held[key] != default[key]
    ]
    changed += [f"tuned: {point(chosen)}"] if chosen else []
    return f" ({', '.join(changed)})" if changed else ""
