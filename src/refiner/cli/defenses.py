"""`refiner defenses` and `refiner attacks`: list the methods and their settings."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from refiner.attacks import ATTACKS, Attack
from refiner.checks import unknown_name
from refiner.cli.common import console, one_line_errors
from refiner.defenses import DEFENSES, Defense
from refiner.describe import Setting, settings_of
from refiner.errors import PluginWarning
from refiner.registry import Registry, dataclass_of, one_line

T = TypeVar("T")
Facts = Callable[[T], Mapping[str, str]]


def defenses(
    command: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Show this one in detail. Default: list all.")] = None,
) -> None:
    """List the defences: what each needs and costs, what is proven, its settings and their ranges."""
    with one_line_errors(command):
        _show(DEFENSES, "defense", name, _defense_facts)
        if name is None:
            console.print(
                "Join several with +, as in refiner+gq, to apply them in sequence; a defence that needs the "
                "data must be the first.",
                highlight=False,
            )


def attacks(
    command: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Show this one in detail. Default: list all.")] = None,
) -> None:
    """List the attacks: what each must be granted, its settings and their ranges."""
    with one_line_errors(command):
        _show(ATTACKS, "attack", name, _attack_facts)


def _defense_facts(defense: Defense) -> dict[str, str]:
    facts = {"needs": f"the {defense.needs}", "cost": defense.cost, "guarantee": defense.guarantee()}
    return facts | ({"paper": defense.reference} if defense.reference else {})


def _attack_facts(attack: Attack) -> dict[str, str]:
    facts = {"needs": ", ".join(sorted(attack.needs)) or "nothing"}
    return facts | ({"paper": attack.reference} if attack.reference else {})


def _show(registry: Registry[T], what: str, name: str | None, facts: Facts[T]) -> None:
    if name is None:
        _list_all(registry, what, facts)
    elif name in registry:
        _show_details(name, registry[name], facts)
    else:
        raise unknown_name(name, registry, what)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _list_all(registry: Registry[T], what: str, facts: Facts[T]) -> None:
    first_of_class: dict[type, tuple[str, list[Setting]]] = {}
    rows = [row for row in (_describe(registry, what, name, facts) for name in registry) if row is not None]
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


def _describe(
    registry: Registry[T], what: str, name: str, facts: Facts[T]
) -> tuple[str, Mapping[str, str], list[Setting]] | None:
    """Name, facts and settings of one method; None, with a warning, for a plug-in that fails to give them."""
    try:
        return name, facts(registry[name]()), settings_of(registry[name])
    except Exception as error:  # third-party code may raise anything, and must not stop the others
        if name in registry.builtin_names():
            raise
        warnings.warn(f"{what} = {name!r}: not listed ({one_line(error)})", PluginWarning, stacklevel=2)
        return None


def _show_details(name: str, make: Callable[..., T], facts: Facts[T]) -> None:
    docstring = inspect.getdoc(dataclass_of(make)) or ""
    console.print(
        f"{name}: {docstring.splitlines()[0]}" if docstring else name, highlight=False, markup=False
    )
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
