"""The options that describe the user's model, the same in every command that has one."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.choices import MODELS
from refiner.errors import DataError

Model = Annotated[
    str,
    typer.Option(
        help=f"Model: one of {', '.join(MODELS)}, a plug-in, with settings like a defence, or your "
        "own code, which is imported and run: package.module:factory or path/to/file.py:factory."
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Weights of the model: .safetensors, or a state_dict in .pt or .pth. Default: none."),
]
Classes = Annotated[
    int | None, typer.Option(help="Number of classes of the model. Default: those of the data.", min=2)
]
Mean = Annotated[
    str | None,
    typer.Option(
        help="Mean of each channel that the model's inputs are normalised with, as 0.485,0.456,0.406; needs "
        "--std. The images stay in 0..1."
    ),
]
Std = Annotated[str | None, typer.Option(help="Standard deviation of each channel; needs --mean.")]


def parse_numbers(field: str, text: str | None) -> tuple[float, ...] | None:
    """Return the numbers of an option like `0.485,0.456,0.406`; None without the option.

    Args:
        field: The option's parameter.
        text: What the user gave.

    Returns:
        The numbers.

    Raises:
        DataError: A part is not a number.

    >>> parse_numbers("mean", "0.5, 1e-1")
    (0.5, 0.1)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        expected = "numbers separated by commas, one for each channel"
        raise DataError(field=field, value=text, expected=expected) from None
