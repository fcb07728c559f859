"""`refiner defenses` and `refiner attacks`: list the methods and their settings."""

from typing import Annotated

import typer

from refiner.cli.common import Json, one_line_errors

Name = Annotated[str | None, typer.Argument(help="Show this one in detail. Default: list all.")]


def defenses(command: typer.Context, name: Name = None, as_json: Json = False) -> None:
    """List the defences: what each needs and costs, what is proven, its settings and their ranges."""
    with one_line_errors(command):
        from refiner.cli.methods import show_defenses

        show_defenses(name, as_json)


def attacks(command: typer.Context, name: Name = None, as_json: Json = False) -> None:
    """List the attacks: what each must be granted, its settings and their ranges."""
    with one_line_errors(command):
        from refiner.cli.methods import show_attacks

        show_attacks(name, as_json)
