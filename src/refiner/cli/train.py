"""`refiner train`: federated training with a defence, and its cost in accuracy."""

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from refiner import checks
from refiner.cli.common import Device, Rate, Size, console, one_line_errors, progress_bar, select_device
from refiner.errors import SettingError
from refiner.federation import SERVERS, Experiment, FederatedSettings, run_experiment
from refiner.federation.reference import read_reference
from refiner.models import MODELS


def train(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for weights, log, settings and outcome.")] = Path(
        "out/train"
    ),
    data: Annotated[
        str,
        typer.Option(help="sample, a dataset of `refiner data list`, folder:PATH, npz:PATH, parquet:PATH."),
    ] = "sample",
    size: Size = None,
    model: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(MODELS.builtin_names())}, or a plug-in; with settings like a defence."
        ),
    ] = "lenet",
    defense: Annotated[
        str, typer.Option(help="Defence from `refiner defenses`: NAME or NAME:setting=value,…")
    ] = "none",
    clients: Annotated[int, typer.Option(help="Number of clients that the data is split across.")] = 10,
    sampled: Annotated[
        int | None, typer.Option(help="Number of clients sampled per round. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 8000,
    batch: Annotated[int, typer.Option(help="Samples per local step.")] = 128,
    local_steps: Annotated[int, typer.Option(help="Local steps per round: 1 is FedSGD, more is FedAvg.")] = 1,
    lr: Annotated[float, typer.Option(help="Learning rate of the local steps.")] = 0.01,
    partition: Annotated[str, typer.Option(help="iid or dirichlet:CONCENTRATION.")] = "iid",
    server: Annotated[
        str, typer.Option(help=f"One of {', '.join(SERVERS)}, with settings like a defence.")
    ] = "fedavg",
    seed: Annotated[
        int, typer.Option(help="Seed of the model, the partition, the batches and the noise.")
    ] = 0,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = 500,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many evaluations in a row without improvement.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 500,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in OUT.")] = False,
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder of a training to compare with; prints PMM, the share of its accuracy."),
    ] = None,
    device: Device = "cpu",
    engine: Annotated[
        str,
        typer.Option(help="local: all clients in one process. flower: one process per client."),
    ] = "local",
    deadline: Annotated[
        float, typer.Option(help="Flower: how many seconds a round waits for its clients.")
    ] = 600.0,
    aggregation: Annotated[
        str, typer.Option(help="Flower: plain, or secure: the server sees only the sum of the updates.")
    ] = "plain",
) -> None:
    """Train a model on data that is split across clients, whose updates are protected by a defence."""
    with one_line_errors(command):
        checks.choice("engine", engine, ("local", "flower"))
        if engine == "flower" and patience is not None:
            raise SettingError(
                field="patience", value=patience, problem="can be given only with the engine local"
            )
        if engine == "local" and aggregation != "plain":
            raise SettingError(
                field="aggregation", value=aggregation, problem="can be given only with the engine flower"
            )
        torch_device = select_device(device)
        experiment = Experiment(
            data=data,
            size=size,
            model=model,
            defense=defense,
            partition=partition,
            server=server,
            evaluate_every=evaluate_every,
            patience=patience,
            training=FederatedSettings(
                rounds=rounds,
                clients=clients,
                sampled=sampled,
                batch=batch,
                local_steps=local_steps,
                lr=lr,
                seed=seed,
            ),
        )
        reference_training = None if reference is None else read_reference(reference, experiment)
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
                    bar.update(line, score=f"accuracy {100 * score:.2f} %")

            if engine == "flower":
                from refiner.federation.flower.engine import train_on_flower

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
                    device=torch_device,
                    on_round=show,
                )
        last = outcome.curve[-1][0]
        console.print(f"Test accuracy after {last} rounds: {100 * outcome.accuracy:.2f} %")
        if reference_training is not None:
            console.print(reference_training.compare(outcome), highlight=False, markup=False, soft_wrap=True)
        console.print(f"Weights, log and settings: {out}", highlight=False, soft_wrap=True)
