"""`refiner recommend`: which defence to take for a model and its data."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refiner.cli.choices import ATTACKS, DEFENSES
from refiner.cli.common import (
    DATA_HELP,
    Chunk,
    Device,
    Json,
    Quiet,
    Root,
    Size,
    console,
    one_line_errors,
    print_json,
    print_line,
    select_device,
)
from refiner.cli.model_options import Classes, Mean, Model, Std, Weights, parse_numbers
from refiner.errors import DataError

if TYPE_CHECKING:
    from refiner.audit import AuditResult, Plan, Victims
    from refiner.recommendation import Recommendation

BLIND_GUESS = "blind-guess"
# Narrower terminals show what the choice depends on; the report has all columns.
_WIDE = 120
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def recommend(
    command: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, plan.json and results; a stopped search continues.")
    ] = Path("out/recommend"),
    data: Annotated[
        str | None, typer.Option(help=f"Images like those to protect: {DATA_HELP} Or a table: csv:FILE.")
    ] = None,
    root: Root = None,
    size: Size = None,
    model: Model = "lenet",
    weights: Weights = None,
    classes: Classes = None,
    mean: Mean = None,
    std: Std = None,
    batch: Annotated[int, typer.Option(help="Batch size of the training that is to be protected.")] = 32,
    target: Annotated[
        str,
        typer.Option(
            help=f"What a defence has to achieve: {BLIND_GUESS}, no attack better than a guess. For a table: "
            "the column with its class labels."
        ),
    ] = BLIND_GUESS,
    max_psnr: Annotated[
        float | None, typer.Option(help="Instead: the highest mean PSNR of an attack, in dB.")
    ] = None,
    max_exposed: Annotated[
        str | None, typer.Option(help="Instead: the largest share of exposed images, such as 5%.")
    ] = None,
    min_error: Annotated[
        float | None,
        typer.Option(
            help="For a table: the smallest error of a feature that an attack may reach, in multiples of a "
            "blind guess's. Default: 0.9."
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="How long attacks may take: 90s, 10min, 2h. The search is scaled down until it fits."
        ),
    ] = "10min",
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Candidate: one of {', '.join(DEFENSES)}, or a plug-in, as NAME or NAME:setting=value,…. "
            "Repeat the option. Default: all of them at several strengths, fewer in a short budget."
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Attack to try: one of {', '.join(ATTACKS)}, or a plug-in. Repeat the option. Default: "
            "analytic, april, activations, linear, inverting, and on a GPU learned; fewer in a short budget."
        ),
    ] = None,
    train_rounds: Annotated[
        int,
        typer.Option(
            help="Rounds of short trainings for the accuracy that the best candidates keep; the trained "
            "model is attacked too. 0 for none; for a table 200 by default.",
            min=0,
        ),
    ] = 0,
    lr: Annotated[
        float, typer.Option(help="Learning rate of these trainings; for a table 0.1 by default.")
    ] = 0.01,
    plan: Annotated[
        Path | None, typer.Option(help="Run this plan (a plan.json) instead of what the budget allows.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, the defences and the attacks.")] = 0,
    chunk: Chunk = None,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest defence that meets a target: attack many at several strengths, and compare prices.

    Attacks run without a defence first; those that reveal nothing then are not used. The same command
    continues a search that was stopped.
    """
    with one_line_errors(command):
        import torch

        from refiner.checks import choice, integer
        from refiner.cli.audit_steps import run_plans
        from refiner.cli.tabular import is_given
        from refiner.core import Task
        from refiner.data.csv_table import table_path
        from refiner.models import build_model
        from refiner.models.build import check_model_classes
        from refiner.recommendation import SearchPlan, Target
        from refiner.recommendation.report import write_recommendation
        from refiner.recommendation.run_recommendation import make_plan
        from refiner.recommendation.search import Search

        file = table_path(data)
        if file is not None:
            from refiner.cli.tabular_recommend import recommend_tabular

            recommend_tabular(
                command,
                file,
                out=out,
                target=target if is_given(command, "target") else None,
                model=model if is_given(command, "model") else None,
                weights=weights,
                classes=classes,
                batch=batch,
                min_error=min_error,
                budget=parse_duration(budget),
                defenses=defense or (),
                attacks=attack or (),
                training_rounds=train_rounds if is_given(command, "train_rounds") else None,
                lr=lr if is_given(command, "lr") else None,
                seed=seed,
                device=select_device(device),
                as_json=as_json,
                quiet=quiet,
            )
            return
        if min_error is not None:
            raise DataError(field="min_error", value=min_error, problem="only for a table: --data csv:FILE")
        choice("target", target, [BLIND_GUESS])
        asked = Target(max_psnr, None if max_exposed is None else parse_share(max_exposed))
        seconds = parse_duration(budget)
        torch_device = select_device(device)
        torch.manual_seed(integer("seed", seed, 0, 2**31))
        saved_plan = None if plan is None else SearchPlan.load(plan)
        images = _load_images(data, root, size, classes, seed)
        network = build_model(
            model,
            images.classes,
            tuple(images.x.shape[2:]),
            classes_given=classes is not None,
            weights=weights,
            mean=parse_numbers("mean", mean),
            std=parse_numbers("std", std),
        )
        task = Task(network.to(torch_device), example=images.x[0].to(torch_device))
        check_model_classes(task, images.y, classes)
        plan_file = out / "plan.json"
        chosen = saved_plan or make_plan(
            task,
            images,
            batch=batch,
            target=asked,
            budget=seconds,
            defenses=defense or None,
            attacks=attack,
            training_rounds=train_rounds,
            lr=lr,
            seed=seed,
            # A stopped search continues, however fast the machine is now.
            earlier=SearchPlan.load(plan_file) if plan_file.exists() else None,
        )
        chosen.save(plan_file)

        def note(text: str) -> None:
            if not quiet:
                print_line(text)

        note(f"{chosen.text}; plan in {plan_file}")

        def run(plans: "Sequence[Plan]") -> "list[AuditResult]":
            return run_plans(plans, out, chunk, control=True, quiet=quiet)

        try:
            found = Search(task, images, chosen, out, run, note).run()
        except KeyboardInterrupt:
            print_line("stopped; what was measured is kept, run the same command to continue")
            raise typer.Exit(130) from None
        found = replace(found, command=_command_with_training(command))
        page = write_recommendation(out / "report.html", found, images.source)
        if as_json:
            print_json({**found.record(), "report": page})
            return
        _print(found)
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _load_images(
    data: str | None, root: Path | None, size: int | None, classes: int | None, seed: int
) -> "Victims":
    """A quarter of the images to attack, at most 64, and images to tune on and to learn from."""
    from refiner.audit import load_labelled_images, load_victims
    from refiner.recommendation.cost import TUNING_VICTIMS
    from refiner.recommendation.run_recommendation import MOST_VICTIMS, POOL, victim_count

    available = MOST_VICTIMS * 4
    if root is None:
        images = load_labelled_images(data, limit=available, size=size, seed=seed, classes=classes)
        available = len(images.labels)
    return load_victims(
        data,
        root=root,
        victims=victim_count(available),
        size=size,
        classes=classes,
        seed=seed,
        tuning_victims=TUNING_VICTIMS,
        public_images=POOL,
    )


def _command_with_training(command: typer.Context) -> str:
    from refiner.cli.repeated_command import repeated_command
    from refiner.recommendation.result import ACCURACY_ROUNDS

    without = ("plan", "train_rounds", "as_json", "quiet")
    return repeated_command(command, f"--train-rounds {ACCURACY_ROUNDS}", without)


def _print(found: "Recommendation") -> None:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from refiner.recommendation.report import COLUMNS, table_rows

    hidden = {"bytes", "clients"} | (set() if console.width >= _WIDE else {"strongest attack", "time"})
    if all(row.price.pmm is None for row in found.rows):
        hidden.add("PMM, %")
    shown = [index for index, name in enumerate(COLUMNS) if name not in hidden]
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for index in shown:
        text = index < COLUMNS.index("PSNR, dB")
        table.add_column(
            COLUMNS[index], justify="left" if text else "right", overflow="fold", no_wrap=index > 0
        )
    for row in table_rows(found):
        cells = [row[index] for index in shown]
        table.add_row(*(escape(cell if isinstance(cell, str) else cell.text) for cell in cells))
    console.print(table)
    console.print(found.sentence, highlight=False, markup=False)
    if found.code:
        console.print(found.code, highlight=False, markup=False, soft_wrap=True)


def parse_duration(text: str) -> float:
    """Return the seconds of `90s`, `10min` or `2h`.

    Raises:
        DataError: It is no such time.

    >>> parse_duration("10min"), parse_duration("1.5 h")
    (600.0, 5400.0)
    >>> parse_duration("10")
    Traceback (most recent call last):
    refiner.errors.DataError: budget = '10': expected a time such as 90s, 10min or 2h
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", text)
    if match is None or float(match[1]) == 0:
        raise DataError(field="budget", value=text, expected="a time such as 90s, 10min or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_share(text: str) -> float:
    """Return the share `5%` or `0.05`.

    Raises:
        DataError: It is no share.

    >>> parse_share("5 %"), parse_share("0.05")
    (0.05, 0.05)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else 2.0
    if share > 1:
        raise DataError(field="max_exposed", value=text, expected="a share such as 5% or 0.05")
    return share
