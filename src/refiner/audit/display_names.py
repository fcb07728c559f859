"""Short, unambiguous names of audits, and their settings without repetition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from refiner.attacks import Attack, make_attack
from refiner.audit.result import AuditResult
from refiner.audit.serialization import to_json_value
from refiner.defenses import Defense, make_defense
from refiner.errors import RefinerError

Pair = tuple[str, str]
_ABBREVIATIONS = {"total_variation": "TV"}


def pair_names(results: Sequence[AuditResult]) -> list[Pair]:
    """Return defence and attack of every audit, each with the settings that differ from its defaults."""
    names: list[Pair] = []
    for result in results:
        defense = result.defense + _changed_settings(result, "defense", result.defense, make_defense)
        attack = result.attack + _changed_settings(result, "attack", result.attack, make_attack)
        # Audits that still have the same name differ in model or data: they are numbered.
        number, base_name = 2, defense
        while (defense, attack) in names:
            defense, number = f"{base_name}, {number}", number + 1
        names.append((defense, attack))
    return names


def shared_settings(names: Sequence[Pair], results: Sequence[AuditResult]) -> dict[str, object]:
    """Return every section of settings: once if all audits agree on it, otherwise once for each audit."""
    sections: dict[str, object] = {}
    for section in dict.fromkeys(key for result in results for key in result.settings):
        values = [result.settings.get(section) for result in results]
        if all(value == values[0] for value in values):
            sections[section] = values[0]
            continue
        for pair, value in zip(names, values, strict=True):
            name = {"defense": pair[0], "attack": pair[1]}.get(section, " against ".join(pair))
            sections[f"{section}: {name}"] = value
    for pair, result in zip(names, results, strict=True):
        if result.tuned is not None:
            scores = {
                f"with {settings_text(result.tuned.settings_of(trial))}": _trial_scores(trial)
                for trial in result.tuned.trials
            }
            sections[f"tuning: {' against '.join(pair)}"] = {
                **result.tuned.chosen,
                "chosen by": result.tuned.criterion,
                **scores,
            }
    sections["seconds"] = {
        " against ".join(pair): asdict(result.seconds) for pair, result in zip(names, results, strict=True)
    }
    return sections


def _trial_scores(trial: Mapping[str, float]) -> str:
    rank = f", mean rank {trial['rank']:.3g}" if "rank" in trial else ""
    return f"{trial['psnr']:.2f} dB{rank}"


def settings_text(settings: Mapping[str, float]) -> str:
    """Return settings of an attack as short text.

    >>> settings_text({"total_variation": 0.1, "lr": 0.03})
    'TV 0.1, lr 0.03'
    """
    return ", ".join(f"{_ABBREVIATIONS.get(name, name)} {value:g}" for name, value in settings.items())


def _changed_settings(
    result: AuditResult, section: str, name: str, make: Callable[[str], Attack | Defense]
) -> str:
    """Return the settings that differ from the defaults of the defence or attack `name`, in brackets."""
    settings = result.settings.get(section)
    try:
        defaults = to_json_value(make(name).settings())
    except RefinerError:  # an object of the user, whose name is not registered
        return ""
    if not isinstance(settings, Mapping):
        return ""
    chosen = result.tuned.chosen if section == "attack" and result.tuned is not None else {}
    changed = [
        f"{key} = {f'{value:.6g}' if isinstance(value := settings[key], float) else value}"
        for key in defaults
        if key in settings and key not in chosen and settings[key] != defaults[key]
    ]
    changed += [f"tuned: {settings_text(chosen)}"] if chosen else []
    return f" ({', '.join(changed)})" if changed else ""


def enumeration(names: Sequence[str]) -> str:
    """Return names as text.

    >>> enumeration(["a"]), enumeration(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
