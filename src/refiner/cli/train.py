"""`refiner train`: federated training with a defence, and its cost in accuracy."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from refiner import checks
from refiner.cli.choices import SERVERS
from refiner.cli.common import (
    DATA_HELP,
    Device,
    Json,
    Quiet,
    Size,
    console,
    one_line_errors,
    print_json,
    print_line,
    select_device,
)
from refiner.cli.interrupt import command_line, stop_on_interrupt
from refiner.cli.model_options import Classes, Mean, Model, Std, Weights, parse_numbers
from refiner.cli.progress import Rate, progress_bar
from refiner.errors import DataError, SettingError

if TYPE_CHECKING:
    from refiner.federation import Experiment, Outcome
    from refiner.federation.reference import Reference


def train(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for report, weights, log, settings and outcome.")] = Path(
        "out/train"
    ),
    data: Annotated[
        str,
        typer.Option(help=f"Data with labels: {DATA_HELP}"),
    ] = "sample",
    size: Size = None,
    model: Model = "lenet",
    weights: Weights = None,
    classes: Classes = None,
    mean: Mean = None,
    std: Std = None,
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on data that is split across clients, whose updates are protected by a defence."""
    with one_line_errors(command):
        from refiner.federation import Experiment, FederatedSettings, TrainingStopped, run_experiment
        from refiner.federation.reference import read_reference
        from refiner.federation.report import write_training_report
        from refiner.federation.training import CheckpointConfig

        checks.choice("engine", engine, ("local", "flower"))
        if engine == "flower" and patience is not None:
            raise SettingError(
                field="patience", value=patience, problem="can be given only with the engine local"
            )
        if engine == "local" and aggregation != "plain":
            raise SettingError(
                field="aggregation", value=aggregation, problem="can be given only with the engine flower"
            )
        checkpoint = CheckpointConfig(out).checkpoint_file
        if resume and not checkpoint.exists():
            raise DataError(field="out", value=str(out), problem="has no checkpoint to resume from")
        torch_device = select_device(device)
        experiment = Experiment(
            data=data,
            size=size,
            model=model,
            classes=classes,
            weights=None if weights is None else str(weights),
            mean=parse_numbers("mean", mean),
            std=parse_numbers("std", std),
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
            quiet=quiet,
        ) as bar:
            line = bar.add_task("training", total=rounds, score="")
            (task,) = bar.tasks

            def show(done: int, score: float | None) -> None:
                bar.update(line, completed=done)
                if score is not None:
                    bar.update(line, score=f"accuracy {100 * score:.2f} %")

            def show_request() -> None:
                task.description = "stopping after this round"

            def note(text: str) -> None:
                print_line(f"note: {text}")

            try:
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
                        on_note=note,
                        on_rejected=warnings.warn,
                    )
                else:
                    with stop_on_interrupt(show_request) as stop:
                        outcome = run_experiment(
                            experiment,
                            out,
                            resume=resume,
                            checkpoint_every=checkpoint_every,
                            device=torch_device,
                            on_round=show,
                            on_note=note,
                            stop=stop,
                        )
            except (KeyboardInterrupt, TrainingStopped) as stopped:
                bar.stop()
                print_line(_how_to_continue(command, checkpoint, stopped))
                raise typer.Exit(130) from None
        report = write_training_report(out, experiment, outcome, reference_training)
        if as_json:
            print_json({**_record(experiment, out, outcome, reference_training), "report": report})
            return
        last = outcome.curve[-1][0]
        loss = dict(outcome.losses).get(last)
        ending = "" if loss is None else f", test loss: {loss:.4g}"
        console.print(f"Test accuracy after {last} rounds: {100 * outcome.accuracy:.2f} %{ending}")
        if reference_training is not None:
            console.print(reference_training.describe(outcome), highlight=False, markup=False, soft_wrap=True)
        console.print(f"Weights, log and settings: {out}", highlight=False, soft_wrap=True)
        console.print(f"Report: {report}", highlight=False, soft_wrap=True)


def _how_to_continue(command: typer.Context, checkpoint: Path, stopped: BaseException) -> str:
    """Return what was kept of an interrupted training, and the command that continues it."""
    if not checkpoint.exists():
        return f"stopped before the first checkpoint; to start again: {command_line(command)}"
    rounds = getattr(stopped, "rounds", None)
    kept = "stopped; the last checkpoint was kept" if rounds is None else f"stopped after {rounds:,} rounds"
    return f"{kept}; to continue: {command_line(command, '--resume')}"


def _record(
    experiment: "Experiment", out: Path, outcome: "Outcome", reference: "Reference | None"
) -> dict[str, object]:
    """Return the outcome of a training for JSON."""
    compared = None if reference is None else reference.compare(outcome)
    record: dict[str, object] = {"rounds": outcome.curve[-1][0], **asdict(outcome), "out": out}
    record["settings"], record["reference"] = asdict(experiment), None
    if reference is not None:
        record["reference"] = {
            "folder": reference.folder,
            "differences": dict(reference.differences),
            "rounds": None if compared is None else compared.rounds,
            "accuracy": None if compared is None else compared.reference_accuracy,
            "pmm": None if compared is None else compared.pmm,
        }
    return record
