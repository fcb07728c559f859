"""`refiner identity`: a client's key for secure aggregation."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import console, one_line_errors
from refiner.errors import DataError


def identity(
    command: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The client's own folder.", show_default=False)],
) -> None:
    """Print a client's public key, by which secure aggregation knows it; the key is made if there is none."""
    with one_line_errors(command):
        from refiner.federation.flower.client_secrets import identity_in

        if not folder.is_dir():
            raise DataError(f"folder = {str(folder)!r}: no such folder")
        console.print(identity_in(folder, new=True).public.hex(), highlight=False, soft_wrap=True)
