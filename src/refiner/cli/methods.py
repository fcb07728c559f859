"""What `refiner defenses` and `refiner attacks` print: tables and JSON of methods and their settings."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from refiner.attacks import ATTACKS, Attack
from refiner.checks import unknown_name
from refiner.cli.common import console, print_json
from refiner.defenses import DEFENSES, Defense
from refiner.describe import Setting, settings_of
from refiner.errors import PluginWarning
from refiner.inference import MEMBERSHIP, AttributeInference, MembershipAttack
from refiner.registry import Registry, dataclass_of, one_line

T = TypeVar("T")
Facts = Callable[[T], Mapping[str, str]]
Row = tuple[str, Mapping[str, str], list[Setting]]
"""Name, facts and settings of one method."""
ATTRIBUTE = {AttributeInference.name: AttributeInference}
_MEMBERSHIP = "membership"
_HEADINGS = {
    _MEMBERSHIP: f"{_MEMBERSHIP}, as {_MEMBERSHIP}:method=NAME",
    AttributeInference.name: f"{AttributeInference.name}, with --attribute",
}


def show_defenses(name: str | None, as_json: bool) -> None:
    """Print all defences, or one in detail."""
    _show(DEFENSES, "defense", name, _defense_facts, as_json)
    if name is None and not as_json:
        console.print(
            "Join several with +, as in refiner+gq, to apply them in sequence; a defence that needs the "
            "data must be the first.",
            highlight=False,
        )


def show_attacks(name: str | None, as_json: bool) -> None:
    """Print all attacks, those on membership and attributes last, or one in detail."""
    if name is None or name == _MEMBERSHIP:
        _list_attacks(as_json, only=name)
    elif name in MEMBERSHIP:
        _show(MEMBERSHIP, "attack", name, _attack_facts, as_json)
    elif name in ATTRIBUTE:
        _show(ATTRIBUTE, "attack", name, _attack_facts, as_json)
    else:
        _show(ATTACKS, "attack", name, _attack_facts, as_json)


def _list_attacks(as_json: bool, only: str | None) -> None:
    """Print the attacks of all kinds, or those of one."""
    found: dict[str, tuple[Mapping[str, Callable[..., object]], list[Row]]] = {
        "reconstruction": (ATTACKS, _rows(ATTACKS, "attack", _attack_facts)),
        _MEMBERSHIP: (MEMBERSHIP, _rows(MEMBERSHIP, "attack", _attack_facts)),
        AttributeInference.name: (ATTRIBUTE, _rows(ATTRIBUTE, "attack", _attack_facts)),
    }
    records: list[dict[str, object]] = []
    for kind, (registry, rows) in found.items():
        if only is not None and kind != only:
            continue
        if not as_json:
            _print_rows(registry, _HEADINGS.get(kind, "attack"), rows)
        for name, about, settings in rows:
            option = f"{_MEMBERSHIP}:method={name}" if kind == _MEMBERSHIP else name
            records.append({**_record(name, registry[name], about, settings), "kind": kind, "option": option})
    if as_json:
        print_json(records)


def _defense_facts(defense: Defense) -> dict[str, str]:
    facts = {"needs": f"the {defense.needs}", "cost": defense.cost, "guarantee": defense.guarantee()}
    return facts | ({"paper": defense.reference} if defense.reference else {})


def _attack_facts(attack: Attack | MembershipAttack | AttributeInference) -> dict[str, str]:
    facts = {"needs": ", ".join(sorted(attack.needs)) or "nothing"}
    return facts | ({"paper": attack.reference} if attack.reference else {})


def _show(
    registry: Mapping[str, Callable[..., T]], what: str, name: str | None, facts: Facts[T], as_json: bool
) -> None:
    if name is not None and name not in registry:
        raise unknown_name(name, registry, what)
    if name is None:
        rows = _rows(registry, what, facts)
        if as_json:
            print_json([_record(each, registry[each], about, settings) for each, about, settings in rows])
        else:
            _print_rows(registry, what, rows)
    elif as_json:
        make = registry[name]
        print_json(_record(name, make, facts(make()), settings_of(make)))
    else:
        _show_details(name, registry[name], facts)


def _record(
    name: str, make: Callable[..., object], facts: Mapping[str, str], settings: list[Setting]
) -> dict[str, object]:
    return {
        "name": name,
        "description": _description(make),
        **facts,
        "settings": [asdict(setting) for setting in settings],
    }


def _description(make: Callable[..., object]) -> str:
    """Return the first line of a method's docstring."""
    return (inspect.getdoc(dataclass_of(make)) or "").partition("\n")[0]


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rows(registry: Mapping[str, Callable[..., T]], what: str, facts: Facts[T]) -> list[Row]:
    """All methods that give their facts and settings."""
    return [row for row in (_describe(registry, what, name, facts) for name in registry) if row is not None]


def _print_rows(registry: Mapping[str, Callable[..., object]], what: str, rows: Sequence[Row]) -> None:
    first_of_class: dict[type, tuple[str, list[Setting]]] = {}
    table = _table(what, "settings", ", ".join(key for key in rows[0][1] if key != "paper"))
    for name, about, settings in rows:
        make = registry[name]
        first, first_settings = first_of_class.setdefault(dataclass_of(make), (name, settings))
        lines = [s.brief() for s in settings if not s.private]
        if first != name:
            pairs = zip(settings, first_settings, strict=True)
            changed = [
                s.brief() if s.expected != other.expected else f"{s.name} = {s.default}"
                for s, other in pairs
                if s.brief() != other.brief()
            ]
            lines = [f"as {first}, except", *changed]
        description = "; ".join(
            f"{key} {text}" if key == "needs" else f"{key}: {text}"
            for key, text in about.items()
            if key != "paper"
        )
        table.add_row(escape(name), escape("\n".join(lines)), escape(description), end_section=True)
    console.print(table, highlight=False)


def _describe(registry: Mapping[str, Callable[..., T]], what: str, name: str, facts: Facts[T]) -> Row | None:
    """Name, facts and settings of one method; None, with a warning, for a plug-in that fails to give them."""
    try:
        return name, facts(registry[name]()), settings_of(registry[name])
    except Exception as error:  # third-party code may raise anything, and must not stop the others
        if not isinstance(registry, Registry) or name in registry.builtin_names():
            raise
        warnings.warn(f"{what} = {name!r}: not listed ({one_line(error)})", PluginWarning, stacklevel=2)
        return None


def _show_details(name: str, make: Callable[..., T], facts: Facts[T]) -> None:
    description = _description(make)
    console.print(f"{name}: {description}" if description else name, highlight=False, markup=False)
    for key, text in facts(make()).items():
        console.print(f"{key}: {text}", highlight=False, markup=False)
    settings = settings_of(make)
    if not settings:
        return
    table = _table("setting", "default", "expected", "meaning")
    for s in settings:
        meaning = f"{s.help} It stays on the client.".strip() if s.private else s.help
        table.add_row(*map(escape, (s.name, s.default, s.expected or s.kind, meaning)))
    console.print(table, highlight=False)
