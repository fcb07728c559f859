"""Two folders of audit results compared: old and new scores, and the settings that differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refiner.audit.display_names import Pair, pair_names
from refiner.audit.result import AuditResult
from refiner.errors import DataError

_LONGEST_VALUE = 48


@dataclass(frozen=True, eq=False)
class ResultPair:
    """An old and a new result of the same attack on the same defence.

    Args:
        defense: Name of the defence.
        attack: Name of the attack.
        old: The old result.
        new: The new result.
    """

    defense: str
    attack: str
    old: AuditResult
    new: AuditResult

    @property
    def name(self) -> str:
        """Defence and attack as text."""
        return f"{self.defense} against {self.attack}"

    @property
    def psnr_change(self) -> float:
        """Change of the mean PSNR in dB: positive if the new attack reveals more."""
        return self.new.means["psnr"].value - self.old.means["psnr"].value


@dataclass(frozen=True)
class SettingDifference:
    """A setting that differs.

    Args:
        name: Its name, as "attack.iterations".
        old: The old value as text; "–" where there is none.
        new: The new value as text.
        pairs: The pairs of defence and attack in which it differs; empty for all of them.
    """

    name: str
    old: str
    new: str
    pairs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AuditComparison:
    """Old and new results of the same defences and attacks, side by side.

    Args:
        pairs: The pairs of defence and attack that both have.
        only_old: Those that only the old results have.
        only_new: Those that only the new results have.
        differences: The settings in which the pairs differ.
    """

    pairs: Sequence[ResultPair]
    only_old: Sequence[Pair]
    only_new: Sequence[Pair]
    differences: Sequence[SettingDifference]


def load_results(folder: Path, field: str = "folder") -> list[AuditResult]:
    """Return the results that `audit_all` or `refiner audit` saved in a folder, in the order they were made.

    Args:
        folder: The folder.
        field: What to call it in an error.

    Returns:
        The results.

    Raises:
        DataError: if there are no results, or one of them is damaged.

    >>> load_results(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: folder = 'absent': no results of an audit
    """
    results = [AuditResult.load(file) for file in sorted(folder.glob("*.json"))]
    if not results:
        raise DataError(
            field=field,
            value=str(folder),
            expected="a folder that `refiner audit --out` wrote",
            problem="no results of an audit",
        )
    return sorted(results, key=lambda result: result.made)


def compare_results(old: Sequence[AuditResult], new: Sequence[AuditResult]) -> AuditComparison:
    """Return old and new results side by side.

    Results belong together if defence and attack have the same settings, or else if they have the same names
    and there is only one such result on either side.

    Args:
        old: The old results.
        new: The new results.

    Returns:
        The comparison.

    Raises:
        DataError: if there is no pair of defence and attack that both have.
    """
    left = dict(zip(pair_names(old), old, strict=True))
    right = dict(zip(pair_names(new), new, strict=True))
    partners = {pair: pair for pair in left if pair in right}
    rest_old, rest_new = (
        _by_name({pair: result for pair, result in side.items() if pair not in partners})
        for side in (left, right)
    )
    for name, found in rest_old.items():
        others = rest_new.get(name, [])
        if len(found) == len(others) == 1:
            partners[found[0]] = others[0]
    if not partners:
        raise DataError(
            "no pair of defence and attack is in both: "
            f"{', '.join(map(' against '.join, left))}; {', '.join(map(' against '.join, right))}",
            field="new",
        )
    pairs = []
    for pair, result in left.items():
        if pair in partners:
            other = partners[pair]
            # Settings that differ are no part of the name.
            defense, attack = pair if other == pair else (result.defense, result.attack)
            pairs.append(ResultPair(defense, attack, result, right[other]))
    return AuditComparison(
        pairs,
        [pair for pair in left if pair not in partners],
        [pair for pair in right if pair not in partners.values()],
        _differences(pairs),
    )


def _by_name(results: Mapping[Pair, AuditResult]) -> dict[Pair, list[Pair]]:
    """Return the pairs with settings by their names without."""
    names: dict[Pair, list[Pair]] = {}
    for pair, result in results.items():
        names.setdefault((result.defense, result.attack), []).append(pair)
    return names


def _differences(pairs: Sequence[ResultPair]) -> list[SettingDifference]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs:
        old, new = (dict(_flatten(result.settings)) for result in (pair.old, pair.new))
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                values = (old.get(name, "–"), new.get(name, "–"))
                found.setdefault((name, *values), []).append(pair.name)
    return [
        SettingDifference(*key, pairs=() if len(names) == len(pairs) else tuple(names))
        for key, names in found.items()
    ]


def _flatten(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting with its value as short text.

    >>> list(_flatten({"seed": 0, "attack": {"lr": 0.1}}))
    [('seed', '0'), ('attack.lr', '0.1')]
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{prefix}{name}", text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
