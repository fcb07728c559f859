"""`refiner evalnet`: train the evaluation network, and score the share of noise in images."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import DATA_HELP, Device, Size, console, one_line_errors, progress_bar, select_device
from refiner.data import load_image, load_images
from refiner.evaluation import EvaluationNetwork, EvaluationTrainingSettings, train

evalnet = typer.Typer(no_args_is_help=True, help="The evaluation network: estimates the share of noise.")


@evalnet.command("train")
def train_command(
    command: typer.Context,
    data: Annotated[str, typer.Option(help=f"Images of equal size: {DATA_HELP}")],
    out: Annotated[Path, typer.Option(help="File for the weights, .safetensors.")],
    epochs: Annotated[int, typer.Option()] = EvaluationTrainingSettings.epochs,
    learning_rate: Annotated[float, typer.Option()] = EvaluationTrainingSettings.learning_rate,
    decay: Annotated[
        bool, typer.Option(help="Decay the learning rate to zero.")
    ] = EvaluationTrainingSettings.decay,
    batch: Annotated[int, typer.Option()] = EvaluationTrainingSettings.batch,
    seed: Annotated[int, typer.Option()] = EvaluationTrainingSettings.seed,
    device: Device = "cpu",
    size: Size = None,
    half: Annotated[
        bool, typer.Option(help="Save the weights in half precision, like the bundled ones.")
    ] = False,
) -> None:
    """Train the network; after an interruption the same command continues."""
    with one_line_errors(command):
        training = EvaluationTrainingSettings(
            epochs=epochs, learning_rate=learning_rate, decay=decay, batch=batch, seed=seed
        )
        images = load_images(data, size=size)
        with progress_bar() as bar:
            line = bar.add_task("epochs", total=epochs)
            network = train(
                images,
                training,
                out,
                device=select_device(device),
                on_epoch=lambda epoch, loss: bar.update(
                    line, completed=epoch, description=f"epochs, loss {loss:.5f}"
                ),
            )
        if half:
            network.save(out, half=True)
        console.print(f"Weights: {out}")


@evalnet.command("score")
def score_command(
    command: typer.Context,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the network. Default: the bundled ones.")
    ] = None,
    size: Size = None,
) -> None:
    """Print the estimated share of noise in each image, from 0 to 1."""
    with one_line_errors(command):
        network = EvaluationNetwork.bundled() if weights is None else EvaluationNetwork.load(weights)
        for path in images:
            ratio = float(network.score(load_image(path, size=size)[None])[0])
            console.print(f"{ratio:.3f}  {path}", highlight=False, soft_wrap=True)
