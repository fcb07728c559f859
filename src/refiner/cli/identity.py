"""`refiner identity`: a client's key for secure aggregation."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import Json, console, one_line_errors, print_json
from refiner.errors import DataError


def identity(
    command: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The client's private folder.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Print a client's public key for secure aggregation; a new key is created if there is none."""
    with one_line_errors(command):
        from refiner.federation.flower.client_secrets import load_identity

        if not folder.is_dir():
            raise DataError(field="folder", value=str(folder), problem="no such folder")
        public_key = load_identity(folder, create=True).public.hex()
        if as_json:
            print_json({"folder": folder, "public_key": public_key})
            return
        console.print(public_key, highlight=False, soft_wrap=True)
