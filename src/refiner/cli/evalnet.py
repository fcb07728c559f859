"""`refiner evalnet`: train the evaluation network, read the share of noise."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import Device, Size, console, one_line_errors, progress_bar, to_device
from refiner.data import load_image, read_images
from refiner.evaluation import EvaluationNetwork, Training, train

evalnet = typer.Typer(no_args_is_help=True, help="The evaluation network that reads the share of noise.")


@evalnet.command("train")
def train_command(
    command: typer.Context,
    data: Annotated[Path, typer.Option(help="Folder of images of one size, or an .npz.")],
    out: Annotated[Path, typer.Option(help="Where the weights go, a .safetensors file.")],
    epochs: Annotated[int, typer.Option()] = Training.epochs,
    learning_rate: Annotated[float, typer.Option()] = Training.learning_rate,
    decay: Annotated[bool, typer.Option(help="Let the learning rate fall to zero.")] = Training.decay,
    batch: Annotated[int, typer.Option()] = Training.batch,
    seed: Annotated[int, typer.Option()] = Training.seed,
    device: Device = "cpu",
    size: Size = None,
    half: Annotated[bool, typer.Option(help="Write half precision, as the bundled weights.")] = False,
) -> None:
    """Train it; a run that was stopped goes on where it was."""
    with one_line_errors(command):
        training = Training(epochs=epochs, learning_rate=learning_rate, decay=decay, batch=batch, seed=seed)
        images = read_images(data, size=size)
        with progress_bar() as bar:
            line = bar.add_task("epochs", total=epochs)
            network = train(
                images,
                training,
                out,
                device=to_device(device),
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
    weights: Annotated[Path | None, typer.Option(help="Weights; the bundled ones if left out.")] = None,
    size: Size = None,
) -> None:
    """Print the share of noise in each image, from 0 to 1."""
    with one_line_errors(command):
        network = EvaluationNetwork.bundled() if weights is None else EvaluationNetwork.load(weights)
        for path in images:
            ratio = float(network.score(load_image(path, size=size)[None])[0])
            console.print(f"{ratio:.3f}  {path}", highlight=False, soft_wrap=True)
