"""`refiner recup fit`: fit the attribute classifiers that RecUP misleads."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import Device, Json, Root, console, one_line_errors, print_json, select_device
from refiner.cli.model_options import Mean, Model, Std, Weights, parse_numbers

recup = typer.Typer(no_args_is_help=True, help="RecUP, the defence that hides one attribute of a client.")


@recup.command("fit")
def fit_command(
    command: typer.Context,
    data: Annotated[str, typer.Option(help="Dataset of people with that attribute, such as lfw.")],
    attribute: Annotated[
        str, typer.Option(help="Attribute to hide: gender of lfw, person, or an array of your own .npz.")
    ],
    out: Annotated[Path, typer.Option(help="File for the classifiers, .safetensors.")],
    root: Root = None,
    model: Model = "lenet",
    weights: Weights = None,
    mean: Mean = None,
    std: Std = None,
    batch: Annotated[int, typer.Option(help="Images in a client's batch.")] = 8,
    least_images: Annotated[
        int | None, typer.Option(help="Only people with so many images. Default: 5, for person --batch.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Simulated clients to train on, at least.")] = 400,
    members: Annotated[int, typer.Option(help="Number of classifiers.")] = 6,
    seed: Annotated[
        int, typer.Option(help="Seed of the model, and of who is public: as that of `refiner audit`.")
    ] = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Fit classifiers of an attribute to public people and a model, for `recup:file=OUT`.

    Public are those of `refiner audit --attack attribute` with the same data, attribute, batch and seed, so
    that no client of the audit is among them.
    """
    with one_line_errors(command):
        from refiner.audit import load_attribute_clients
        from refiner.checks import integer
        from refiner.cli.attribute_audit import attribute_task
        from refiner.defenses import RecUP

        torch_device = select_device(device)
        people = load_attribute_clients(
            data, attribute, root=root, batch=batch, least_images=least_images, seed=seed
        )
        task = attribute_task(
            people,
            model,
            weights,
            integer("seed", seed, 0, 2**32 - 1),
            torch_device,
            mean=parse_numbers("mean", mean),
            std=parse_numbers("std", std),
        )
        fitted = RecUP.fit(
            task,
            *people.public,
            groups=people.groups[1],
            batch=batch,
            clients=clients,
            members=members,
            seed=seed,
        )
        fitted.save(out)
        images, accuracy = len(people.public[1]), fitted.zoo.accuracy
        if as_json:
            print_json({"classifiers": out, "public_images": images, "balanced_accuracy": accuracy})
            return
        console.print(
            f"Classifiers of {attribute} from {images:,} public images: {out}; {100 * accuracy:.0f} % right "
            "for people held out.",
            highlight=False,
            soft_wrap=True,
        )
