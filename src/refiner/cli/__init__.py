"""The command line: it parses arguments, calls the library and shows the results."""

from typing import Annotated

import typer

from refiner._version import __version__
from refiner.cli.audit import audit
from refiner.cli.common import console
from refiner.cli.compare import compare
from refiner.cli.data import data
from refiner.cli.defenses import attacks, defenses
from refiner.cli.evalnet import evalnet
from refiner.cli.gan import gan
from refiner.cli.identity import identity
from refiner.cli.noise import noise
from refiner.cli.one_line_group import OneLineGroup
from refiner.cli.recommend import recommend
from refiner.cli.recup import recup
from refiner.cli.refine import refine
from refiner.cli.train import train

app = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(audit)
app.command()(compare)
app.command()(recommend)
app.command()(refine)
app.command()(train)
app.command()(defenses)
app.command()(attacks)
app.command()(identity)
app.add_typer(data, name="data", cls=OneLineGroup)
app.add_typer(evalnet, name="evalnet", cls=OneLineGroup)
app.add_typer(gan, name="gan", cls=OneLineGroup)
app.add_typer(noise, name="noise", cls=OneLineGroup)
app.add_typer(recup, name="recup", cls=OneLineGroup)


def _print_version(requested: bool) -> None:
    if requested:
        console.print(f"refiner {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Protect a federated-learning client's data from gradient-leakage attacks; measure what still leaks."""
