"""What all commands share: options, output as text or JSON, and one-line errors.

The modules of the command line import the library inside their functions: `--help` and the completion of a
shell answer at once, without PyTorch.
"""

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from refiner.cli.option_errors import command_message
from refiner.errors import DataError, RefinerError
from refiner.registry import Registry, one_line

if TYPE_CHECKING:
    import torch

console = Console()

Size = Annotated[
    int | None,
    typer.Option(help="Resize images to this many pixels: the shorter side, then a centre crop.", min=1),
]
DATA_HELP = (
    "sample, a dataset of `refiner data list`, or the path of your own: a folder of images (sub-folders are "
    "classes), an .npz, a .parquet, or a folder from save_to_disk of Hugging Face datasets; or with its "
    "kind: folder:PATH, npz:PATH, parquet:PATH, arrow:PATH."
)
Root = Annotated[
    Path | None, typer.Option(help="Folder with a dataset's original files, instead of the cache.")
]
Chunk = Annotated[int | None, typer.Option(help="Clients attacked at a time; fewer need less memory.")]
Device = Annotated[str, typer.Option(help="Device to compute on: cpu or cuda.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON, and nothing else on stdout."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def print_json(value: object) -> None:
    """Print a value as JSON on stdout; numbers that JSON does not have (NaN, ∞) become null.

    >>> print_json({"psnr": float("nan"), "levels": ("visible", "neither")})
    {
     "psnr": null,
     "levels": [
      "visible",
      "neither"
     ]
    }
    """
    print(json.dumps(_plain_value(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    return str(value) if isinstance(value, PathLike) else value


def select_device(name: str) -> "torch.device":
    """Return the device of that name; raise `DataError` if it is not available."""
    import torch

    if name not in ("cpu", "cuda"):
        raise DataError(field="device", value=name, expected="cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DataError(field="device", value="cuda", problem="no CUDA device is available; use cpu")
    return torch.device(name)


@contextmanager
def one_line_errors(command: typer.Context) -> Iterator[None]:
    """Turn errors of the library and of plug-ins into one line and exit code 2, and warnings into one line.

    Any other error is a bug of the library and keeps its traceback.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_line(f"warning: {message}")
        try:
            yield
        except RefinerError as error:
            print_line(command_message(error, command))
            raise typer.Exit(2) from None
        except Exception as error:  # third-party code may raise anything
            message = _plugin_message(error)
            if message is None and isinstance(error, OSError):
                message = f"{error.filename or 'system'}: {error.strerror or error}"
            if message is None:
                raise
            print_line(message)
            raise typer.Exit(2) from None


def _plugin_message(error: Exception) -> str | None:
    """The line for an error that was raised in the code of a plug-in; None for any other."""
    from refiner.attacks import ATTACKS
    from refiner.defenses import DEFENSES
    from refiner.inference import MEMBERSHIP
    from refiner.models import MODELS

    registries: dict[str, Registry[Any]] = {
        "defense": DEFENSES,
        "attack": ATTACKS,
        "membership attack": MEMBERSHIP,
        "model": MODELS,
    }
    for kind, registry in registries.items():
        name = registry.find_plugin(error)
        if name is not None:
            return f"{kind} = {name!r}: this plug-in failed ({one_line(error)})"
    return None


def print_line(text: str) -> None:
    """Print one line on stderr: an error, a warning or a note."""
    # File names and other machines' texts may contain characters that control a terminal.
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))
    print(f"refiner: {line}", file=sys.stderr)
