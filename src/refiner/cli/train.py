"""`refiner train`: a federated training with a defence, and what it costs in accuracy."""

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from refiner import checks
from refiner.cli.common import Device, Rate, Size, console, one_line_errors, progress_bar, to_device
from refiner.errors import SettingError
from refiner.federation import SERVERS, Experiment, Training, run_experiment
from refiner.federation.reference import read_reference
from refiner.models import NAMES


def train(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for weights, log, settings and outcome.")] = Path(
        "out/train"
    ),
    data: Annotated[
        str, typer.Option(help="sample, a source of `refiner data list`, folder:, npz: or parquet:PATH.")
    ] = "sample",
    size: Size = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "lenet",
    defense: Annotated[
        str, typer.Option(help="NAME or NAME:setting=value,… of `refiner defenses`.")
    ] = "none",
    clients: Annotated[int, typer.Option(help="Among whom the data are parted.")] = 10,
    sampled: Annotated[int | None, typer.Option(help="Who take part in a round; all if left out.")] = None,
    rounds: Annotated[int, typer.Option(help="How many in all.")] = 8000,
    batch: Annotated[int, typer.Option(help="Samples of a local step.")] = 128,
    local_steps: Annotated[int, typer.Option(help="1 is FedSGD, more is FedAvg.")] = 1,
    lr: Annotated[float, typer.Option(help="Learning rate of a local step.")] = 0.01,
    partition: Annotated[str, typer.Option(help="iid or dirichlet:CONCENTRATION.")] = "iid",
    server: Annotated[
        str, typer.Option(help=f"One of {', '.join(SERVERS)}, with settings as defences have them.")
    ] = "fedavg",
    seed: Annotated[int, typer.Option(help="Of the model, the partition, the batches and the noise.")] = 0,
    evaluate_every: Annotated[int, typer.Option(help="Rounds from one test to the next.")] = 500,
    patience: Annotated[
        int | None, typer.Option(help="End after so many tests in a row without a better one.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds from one checkpoint to the next.")] = 500,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in OUT.")] = False,
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder of a training to compare with: prints PMM, the share of its accuracy."),
    ] = None,
    device: Device = "cpu",
    engine: Annotated[
        str, typer.Option(help="local: all clients in one call. flower: a process for each, over Flower.")
    ] = "local",
    deadline: Annotated[
        float, typer.Option(help="Flower: seconds that a round waits for its clients.")
    ] = 600.0,
    aggregation: Annotated[
        str, typer.Option(help="Flower: plain, or secure: the server sees the sum of the updates alone.")
    ] = "plain",
) -> None:
    """Train a model on data parted among clients, each of whom uploads only what the defence lets out."""
    with one_line_errors(command):
        checks.choice("engine", engine, ("local", "flower"))
        if engine == "flower" and patience is not None:
            raise SettingError(f"patience = {patience}: goes with engine = local only")
        if engine == "local" and aggregation != "plain":
            raise SettingError(f"aggregation = {aggregation!r}: goes with engine = flower only")
        where = to_device(device)
        experiment = Experiment(
            data=data,
            size=size,
            model=model,
            defense=defense,
            partition=partition,
            server=server,
            evaluate_every=evaluate_every,
            patience=patience,
            training=Training(
                rounds=rounds,
                clients=clients,
                sampled=sampled,
                batch=batch,
                local_steps=local_steps,
                lr=lr,
                seed=seed,
            ),
        )
        other = None if reference is None else read_reference(reference, experiment)
        with progress_bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Rate("rounds"),
            TextColumn("{task.fields[score]}"),
            TimeRemainingColumn(),
        ) as bar:
            line = bar.add_task("training", total=rounds, score="")

            def show(done: int, score: float | None) -> None:
                bar.update(line, completed=done)
                if score is not None:
                    bar.update(line, score=f"{100 * score:.2f} % right")

            if engine == "flower":
                from refiner.federation.flower.study import train_on_flower

                outcome = train_on_flower(
                    experiment,
                    out,
                    resume=resume,
                    checkpoint_every=checkpoint_every,
                    device=device,
                    deadline=deadline,
                    aggregation=aggregation,
                    on_round=show,
                    on_rejected=warnings.warn,
                )
            else:
                outcome = run_experiment(
                    experiment,
                    out,
                    resume=resume,
                    checkpoint_every=checkpoint_every,
                    device=where,
                    on_round=show,
                )
        last = outcome.curve[-1][0]
        console.print(f"{100 * outcome.accuracy:.2f} % of the test samples right after {last} rounds")
        if other is not None:
            console.print(other.compared(outcome), highlight=False, markup=False, soft_wrap=True)
        console.print(f"Weights, log and settings: {out}", highlight=False, soft_wrap=True)
