"""`refiner identity`: a client's key for secure aggregation."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import console, one_line_errors
from refiner.errors import DataError


def identity(
    command: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The client's private folder.", show_default=False)],
) -> None:
    """Print a client's public key for secure aggregation; a new key is created if there is none."""
    with one_line_errors(command):
        from refiner.federation.flower.client_secrets import load_identity

        if not folder.is_dir():
            raise DataError(field="folder", value=str(folder), problem="no such folder")
        console.print(load_identity(folder, create=True).public.hex(), highlight=False, soft_wrap=True)
