"""`refiner defenses` and `refiner attacks`: what there is to choose, and what it is set by."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from refiner.attacks import ATTACKS, Attack
from refiner.checks import nearest
from refiner.cli.common import console, one_line_errors
from refiner.defenses import DEFENSES, Defense
from refiner.describe import Setting, settings_of
from refiner.registry import dataclass_of

T = TypeVar("T")
Facts = Callable[[T], Mapping[str, str]]


def defenses(
    command: typer.Context,
    name: Annotated[str | None, typer.Argument(help="One of them, in full; all if left out.")] = None,
) -> None:
    """Show the defences: what each needs and costs, what is proven of it, its settings and their ranges."""
    with one_line_errors(command):
        _show(DEFENSES, "defense", name, _of_defense)
        if name is None:
            console.print(
                "Several are joined by a plus, as in refiner+none: each changes what the one before it made. "
                "One that needs the data can only stand first.",
                highlight=False,
            )


def attacks(
    command: typer.Context,
    name: Annotated[str | None, typer.Argument(help="One of them, in full; all if left out.")] = None,
) -> None:
    """Show the attacks: what each must be granted, its settings and their ranges."""
    with one_line_errors(command):
        _show(ATTACKS, "attack", name, _of_attack)


def _of_defense(defense: Defense) -> dict[str, str]:
    return {"needs": f"the {defense.needs}", "cost": defense.cost, "guarantee": defense.guarantee()}


def _of_attack(attack: Attack) -> dict[str, str]:
    return {"needs": ", ".join(sorted(attack.needs)) or "nothing"}


def _show(registry: Mapping[str, Callable[..., T]], what: str, name: str | None, facts: Facts[T]) -> None:
    if name is None:
        _all(registry, what, facts)
    elif name in registry:
        _one(name, registry[name], facts)
    else:
        raise nearest(name, registry, what)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _all(registry: Mapping[str, Callable[..., T]], what: str, facts: Facts[T]) -> None:
    held: dict[type, tuple[str, list[Setting]]] = {}
    told = [facts(make()) for make in registry.values()]
    table = _table(what, "settings", ", ".join(told[0]))
    for (name, make), about in zip(registry.items(), told, strict=True):
        settings = settings_of(make)
        first, known = held.setdefault(dataclass_of(make), (name, settings))
        lines = [s.brief() for s in settings if not s.private]
        if first != name:
            pairs = zip(settings, known, strict=True)
            changed = [
                s.brief() if s.expected != other.expected else f"{s.name} = {s.default}"
                for s, other in pairs
                if s.brief() != other.brief()
            ]
            lines = [f"as {first}, but", *changed]
        shown = "; ".join(
            f"{key} {text}" if key == "needs" else f"{key}: {text}" for key, text in about.items()
        )
        table.add_row(escape(name), escape("\n".join(lines)), escape(shown), end_section=True)
    console.print(table, highlight=False)


def _one(name: str, make: Callable[..., T], facts: Facts[T]) -> None:
    said = inspect.getdoc(dataclass_of(make)) or ""
    console.print(f"{name}: {said.splitlines()[0]}" if said else name, highlight=False, markup=False)
    for key, text in facts(make()).items():
        console.print(f"{key}: {text}", highlight=False, markup=False)
    settings = settings_of(make)
    if not settings:
        return
    table = _table("setting", "default", "expected", "what it is")
    for s in settings:
        what = f"{s.help} It stays on the client.".strip() if s.private else s.help
        table.add_row(*map(escape, (s.name, s.default, s.expected or s.kind, what)))
    console.print(table, highlight=False)
