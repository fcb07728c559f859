"""`refiner evalnet`: train the evaluation network, and score the share of noise in images."""

from pathlib import Path
from typing import Annotated

import typer

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
from refiner.cli.progress import progress_bar

evalnet = typer.Typer(no_args_is_help=True, help="The evaluation network: estimates the share of noise.")


@evalnet.command("train")
def train_command(
    command: typer.Context,
    data: Annotated[str, typer.Option(help=f"Images of equal size: {DATA_HELP}")],
    out: Annotated[Path, typer.Option(help="File for the weights, .safetensors.")],
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 20,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 1e-4,
    decay: Annotated[bool, typer.Option(help="Decay the learning rate to zero.")] = False,
    batch: Annotated[int, typer.Option(help="Images in a batch.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the weights, the order and the noise.")] = 0,
    device: Device = "cpu",
    size: Size = None,
    half: Annotated[
        bool, typer.Option(help="Save the weights in half precision, like the bundled ones.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the network; after an interruption the same command continues."""
    with one_line_errors(command):
        from refiner.data import load_images
        from refiner.evaluation import EvaluationTrainingSettings, train

        training = EvaluationTrainingSettings(
            epochs=epochs, learning_rate=learning_rate, decay=decay, batch=batch, seed=seed
        )
        images = load_images(data, size=size)
        with progress_bar(quiet=quiet) as bar:
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
        if as_json:
            print_json({"weights": out, "images": len(images)})
            return
        console.print(f"Weights: {out}")


@evalnet.command("score")
def score_command(
    command: typer.Context,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the network. Default: the bundled ones.")
    ] = None,
    size: Size = None,
    as_json: Json = False,
) -> None:
    """Print the estimated share of noise in each image, from 0 to 1."""
    with one_line_errors(command):
        from refiner.data import load_image
        from refiner.evaluation import EvaluationNetwork

        network = EvaluationNetwork.bundled() if weights is None else EvaluationNetwork.load(weights)
        scores = [(path, float(network.score(load_image(path, size=size)[None])[0])) for path in images]
        if as_json:
            print_json([{"image": path, "noise_ratio": ratio} for path, ratio in scores])
            return
        for path, ratio in scores:
            console.print(f"{ratio:.3f}  {path}", highlight=False, soft_wrap=True)
