"""`refiner gan`: train the generator, look at what it makes."""

import math
from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import Device, console, one_line_errors, progress_bar, to_device
from refiner.generator import Generator, Training, load_public, train, write_samples

gan = typer.Typer(no_args_is_help=True, help="The generator that an attack may search for its victims.")


@gan.command("train")
def gan_train_command(
    command: typer.Context,
    data: Annotated[Path, typer.Option(help="Folder with the data set's files.")],
    out: Annotated[Path, typer.Option(help="Where the weights go, a .safetensors file; samples beside it.")],
    dataset: Annotated[str, typer.Option(help="cifar10, cifar100, svhn or ham10000.")] = "cifar10",
    limit: Annotated[
        int | None, typer.Option(help="Only the first images; of cifar10 at most 40,000, no victims.")
    ] = None,
    epochs: Annotated[int, typer.Option()] = Training.epochs,
    batch: Annotated[int, typer.Option()] = Training.batch,
    width: Annotated[int, typer.Option(help="Channels of the generator.")] = Training.width,
    discriminator_width: Annotated[int, typer.Option()] = Training.discriminator_width,
    seed: Annotated[int, typer.Option()] = Training.seed,
    device: Device = "cpu",
    resume: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to go on from and to keep; OUT.part, removed at the end, if left out."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Begin no epoch that would end later; the same command goes on.")
    ] = math.inf,
) -> None:
    """Train it; a run that was stopped goes on where it was."""
    with one_line_errors(command):
        where = to_device(device)
        images, labels, classes = load_public(dataset, data, limit)
        training = Training(
            epochs=epochs,
            batch=batch,
            width=width,
            discriminator_width=discriminator_width,
            classes=classes,
            seed=seed,
        )
        with progress_bar() as bar:
            line = bar.add_task("epochs", total=epochs)

            def tell(epoch: int, judging: float, making: float) -> None:
                told = f"discriminator {judging:.3f}, generator {making:+.3f}"
                bar.update(line, completed=epoch, description=f"epochs, {told}")
                if not bar.console.is_terminal:
                    after = bar.tasks[0].elapsed or 0
                    bar.console.print(f"epoch {epoch}/{epochs}: {told}, {after:.0f} s", highlight=False)

            train(
                images,
                labels,
                training,
                out,
                device=where,
                checkpoint=resume,
                minutes=minutes,
                on_step=lambda done: bar.update(line, completed=done),
                on_epoch=tell,
            )
        console.print(f"Weights: {out}, samples: {out.with_suffix('.png')}", soft_wrap=True)


@gan.command("sample")
def gan_sample_command(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="Where the images go, a .png file with a row for each class.")],
    weights: Annotated[Path | None, typer.Option(help="Weights; the bundled ones if left out.")] = None,
    each: Annotated[int, typer.Option(help="Images of each class.")] = 10,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Write images of every class."""
    with one_line_errors(command):
        generator = Generator.bundled() if weights is None else Generator.load(weights)
        console.print(f"Samples: {write_samples(out, generator, each, seed)}", soft_wrap=True)
