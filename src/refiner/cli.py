"""The command line: parse, call, show."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from refiner._version import __version__
from refiner.core import Task
from refiner.data import load_image, load_sample, read_images
from refiner.defenses import Refiner
from refiner.errors import DataError, RefinerError
from refiner.evaluation import EvaluationNetwork, Training, train
from refiner.exhibit import COLUMNS, refine_each, write_exhibit
from refiner.models import build

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
evalnet = typer.Typer(no_args_is_help=True, help="The evaluation network that reads the share of noise.")
app.add_typer(evalnet, name="evalnet")
console = Console()

Size = Annotated[
    int | None, typer.Option(help="Bring pictures to this side: shorter side, then centre.", min=1)
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]


def _version(asked: bool) -> None:
    if asked:
        console.print(f"refiner {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Keep a federated-learning client's data out of its gradients."""


@app.command()
def refine(
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("out/refine"),
    data: Annotated[
        Path | None, typer.Option(help="Picture, folder or .npz; the bundled sample if left out.")
    ] = None,
    model: Annotated[str, typer.Option(help="lenet, resnet10, resnet18, resnet34 or vit.")] = "lenet",
    limit: Annotated[int, typer.Option(help="How many pictures.", min=1)] = 200,
    iterations: Annotated[int, typer.Option(help="ι, the work of the search.")] = 10,
    size: Size = None,
    seed: Annotated[
        int | None,
        typer.Option(help="For a repeatable run; else the system's entropy.", min=0, max=2**31 - 1),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Refine pictures, print what it does to them and their gradients, and write a page with both."""
    with _one_line_errors():
        if out.exists() and not out.is_dir():
            raise DataError(f"out = {str(out)!r}: expected a folder, but it is a file")
        if data is None:
            sample = load_sample()
            images, labels = sample.images[:limit], sample.labels[:limit]
            titles, source = [sample.class_names[int(y)] for y in labels], sample.source
        else:
            images = read_images(data, size=size)[:limit]
            # Foreign pictures have no labels: class 0 stands for all.
            labels, source = torch.zeros(len(images), dtype=torch.long), str(data)
            titles = [f"picture {i + 1}" for i in range(len(images))]
        where = _device(device)
        if seed is not None:
            torch.manual_seed(seed)
        network = build(model, input_shape=tuple(images.shape[1:])).to(where)
        images, labels = images.to(where), labels.to(where)
        task = Task(network, example=images[:2])
        defenses = {
            "refiner (paper)": Refiner.paper(iterations=iterations),
            "refiner": Refiner(iterations=iterations),
        }
        with _progress() as bar:
            line = bar.add_task("refining", total=len(defenses) * len(images))
            rows = refine_each(
                task,
                images,
                labels,
                defenses,
                seed=seed,
                on_progress=lambda name, done: bar.update(line, advance=done, description=name),
            )
        table = Table(title=f"{len(images)} pictures, each alone, {model} at its start")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "defence" else "right")
        for row in rows:
            table.add_row(*row.cells())
        console.print(table)
        page = write_exhibit(out / "index.html", rows, titles, source=source, model=model)
        console.print(f"Pictures side by side: {page}")


@evalnet.command("train")
def train_command(
    data: Annotated[Path, typer.Option(help="Folder of pictures of one size, or an .npz.")],
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
    with _one_line_errors():
        training = Training(epochs=epochs, learning_rate=learning_rate, decay=decay, batch=batch, seed=seed)
        images = read_images(data, size=size)
        with _progress() as bar:
            line = bar.add_task("epochs", total=epochs)
            network = train(
                images,
                training,
                out,
                device=_device(device),
                on_epoch=lambda epoch, loss: bar.update(
                    line, completed=epoch, description=f"epochs, loss {loss:.5f}"
                ),
            )
        if half:
            network.save(out, half=True)
        console.print(f"Weights: {out}")


@evalnet.command("score")
def score_command(
    pictures: Annotated[list[Path], typer.Argument(help="Picture files.")],
    weights: Annotated[Path | None, typer.Option(help="Weights; the bundled ones if left out.")] = None,
    size: Size = None,
) -> None:
    """Print the share of noise in each picture, from 0 to 1."""
    with _one_line_errors():
        network = EvaluationNetwork.bundled() if weights is None else EvaluationNetwork.load(weights)
        for path in pictures:
            ratio = float(network.score(load_image(path, size=size)[None])[0])
            console.print(f"{ratio:.3f}  {path}", highlight=False, soft_wrap=True)


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise DataError(f"device = {name!r}: expected cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DataError("device = 'cuda': no CUDA device is available here; use cpu")
    return torch.device(name)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """A wrong setting or file is a line on stderr and exit code 2, not a traceback."""
    try:
        yield
    except RefinerError as error:
        print(f"refiner: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
