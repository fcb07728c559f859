"""`refiner refine`: shows raw and robust images side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from refiner.cli.common import (
    DATA_HELP,
    Device,
    Json,
    Quiet,
    Size,
    console,
    one_line_errors,
    print_json,
    select_device,
)
from refiner.cli.model_options import Classes, Mean, Model, Std, Weights, parse_numbers
from refiner.cli.progress import progress_bar
from refiner.errors import DataError


def refine(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder in which index.html is written.")] = Path("out/refine"),
    data: Annotated[
        str, typer.Option(help=f"Images: {DATA_HELP} An image alone is also accepted.")
    ] = "sample",
    model: Model = "lenet",
    weights: Weights = None,
    classes: Classes = None,
    mean: Mean = None,
    std: Std = None,
    limit: Annotated[int, typer.Option(help="Maximum number of images.", min=1)] = 200,
    iterations: Annotated[int, typer.Option(help="Refiner's iterations ι.")] = 10,
    size: Size = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for a repeatable run; by default noise is random.", min=0, max=2**31 - 1),
    ] = None,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Refine images, print privacy and gradient distance, and write a page with the images."""
    with one_line_errors(command):
        import torch

        from refiner.audit import load_labelled_images
        from refiner.core import Task
        from refiner.defenses import Refiner
        from refiner.models import build_model
        from refiner.models.build import check_model_classes
        from refiner.refine_report import COLUMNS, refine_each, write_refine_page

        if out.exists() and not out.is_dir():
            raise DataError(field="out", value=str(out), problem="expected a folder, but it is a file")
        labelled = load_labelled_images(data, limit=limit, size=size, classes=classes)
        where = select_device(device)
        if seed is not None:
            torch.manual_seed(seed)
        network = build_model(
            model,
            labelled.classes,
            tuple(labelled.images.shape[1:]),
            classes_given=classes is not None,
            weights=weights,
            mean=parse_numbers("mean", mean),
            std=parse_numbers("std", std),
        )
        images, labels = labelled.images.to(where), labelled.labels.to(where)
        task = Task(network.to(where), example=images[:2])
        check_model_classes(task, labels, classes)
        defenses = {
            "refiner (paper)": Refiner.paper(iterations=iterations),
            "refiner": Refiner(iterations=iterations),
        }
        with progress_bar(quiet=quiet) as bar:
            line = bar.add_task("refining", total=len(defenses) * len(images))
            rows = refine_each(
                task,
                images,
                labels,
                defenses,
                seed=seed,
                on_progress=lambda name, done: bar.update(line, advance=done, description=name),
            )
        state = "untrained" if weights is None else "trained"
        page = write_refine_page(
            out / "index.html", rows, list(labelled.names), source=labelled.source, model=model
        )
        if as_json:
            choices = {"images": len(images), "source": labelled.source, "model": model}
            print_json({**choices, "defenses": [row.record() for row in rows], "page": page})
            return
        table = Table(title=f"{len(images)} images, each refined by itself, {state} {model}")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "defence" else "right")
        for row in rows:
            table.add_row(*row.cells())
        console.print(table)
        console.print(f"Raw and robust images: {page}")
