"""`refiner gan`: train the generator of the GGL attack, and sample from it."""

import math
from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import Device, Json, Quiet, console, one_line_errors, print_json, select_device
from refiner.cli.progress import progress_bar

gan = typer.Typer(no_args_is_help=True, help="The generator in whose latent space the GGL attack searches.")


@gan.command("train")
def gan_train_command(
    command: typer.Context,
    data: Annotated[Path, typer.Option(help="Folder with the dataset's original files.")],
    out: Annotated[
        Path, typer.Option(help="File for the weights, .safetensors; sample images go beside it.")
    ],
    dataset: Annotated[str, typer.Option(help="Dataset: cifar10, cifar100, svhn or ham10000.")] = "cifar10",
    limit: Annotated[
        int | None,
        typer.Option(help="Use only this many images; of cifar10 at most 40,000: the rest are victims."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 100,
    batch: Annotated[int, typer.Option(help="Images in a batch.")] = 256,
    width: Annotated[int, typer.Option(help="Channels of the generator.")] = 168,
    discriminator_width: Annotated[int, typer.Option(help="Channels of the discriminator.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the weights, the order and the latents.")] = 0,
    device: Device = "cpu",
    resume: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to continue from and to keep. Default: OUT.part, removed at the end."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Start no epoch that would end later than this; the same command continues.")
    ] = math.inf,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the generator; after an interruption the same command continues."""
    with one_line_errors(command):
        from refiner.generator import GANTrainingSettings, load_public_images, train

        torch_device = select_device(device)
        images, labels, classes = load_public_images(dataset, data, limit)
        training = GANTrainingSettings(
            epochs=epochs,
            batch=batch,
            width=width,
            discriminator_width=discriminator_width,
            classes=classes,
            seed=seed,
        )
        with progress_bar(quiet=quiet) as bar:
            line = bar.add_task("epochs", total=epochs)

            def show_epoch(epoch: int, discriminator_loss: float, generator_loss: float) -> None:
                losses = f"discriminator {discriminator_loss:.3f}, generator {generator_loss:+.3f}"
                bar.update(line, completed=epoch, description=f"epochs, {losses}")
                if not bar.console.is_terminal:
                    seconds = bar.tasks[0].elapsed or 0
                    bar.console.print(f"epoch {epoch}/{epochs}: {losses}, {seconds:.0f} s", highlight=False)

            train(
                images,
                labels,
                training,
                out,
                device=torch_device,
                checkpoint=resume,
                minutes=minutes,
                on_step=lambda done: bar.update(line, completed=done),
                on_epoch=show_epoch,
            )
        if as_json:
            print_json({"weights": out, "samples": out.with_suffix(".png"), "images": len(images)})
            return
        console.print(f"Weights: {out}, samples: {out.with_suffix('.png')}", soft_wrap=True)


@gan.command("sample")
def gan_sample_command(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="File for the images, .png, with a row for each class.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the generator. Default: the bundled ones.")
    ] = None,
    each: Annotated[int, typer.Option(help="Number of images of each class.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the latents.")] = 0,
    as_json: Json = False,
) -> None:
    """Write generated images of every class."""
    with one_line_errors(command):
        from refiner.generator import Generator, write_sample_grid

        generator = Generator.bundled() if weights is None else Generator.load(weights)
        samples = write_sample_grid(out, generator, each, seed)
        if as_json:
            print_json({"samples": samples})
            return
        console.print(f"Samples: {samples}", soft_wrap=True)
