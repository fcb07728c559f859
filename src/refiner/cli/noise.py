"""`refiner noise`: fit the statistics of shaped noise to images, and predict what noise leaves of them."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from refiner.cli.common import DATA_HELP, Json, Size, console, one_line_errors, print_json, print_line

noise = typer.Typer(no_args_is_help=True, help="Noise that is shaped like images, with which Refiner starts.")

Data = Annotated[
    str,
    typer.Option(help=f"Images: {DATA_HELP} Default: sample."),
]
Root = Annotated[
    Path | None, typer.Option(help="Folder with a dataset's original files, instead of the cache.")
]
# Of CIFAR-10 the later training images are the victims of every study.
_LIMIT = 20_000


@noise.command("fit")
def fit_command(
    command: typer.Context,
    data: Annotated[str, typer.Option(help=f"Public images: {DATA_HELP}")],
    out: Annotated[Path, typer.Option(help="File for the statistics, .safetensors.")],
    root: Root = None,
    size: Size = None,
    as_json: Json = False,
) -> None:
    """Fit the noise to public images like those to protect, for `refiner:statistics=OUT`.

    The statistics become public: they may not be fitted to the images that are to be protected.
    """
    with one_line_errors(command):
        from refiner.data import load_images
        from refiner.shaped_noise import NaturalNoise

        images = load_images(data, root=root, size=size, limit=_LIMIT)
        NaturalNoise.fit(images).save(out)
        if as_json:
            print_json({"statistics": out, "images": len(images)})
            return
        console.print(f"Statistics of {len(images):,} images: {out}", highlight=False)


@noise.command("predict")
def predict_command(
    command: typer.Context,
    data: Data = "sample",
    statistics: Annotated[
        Path | None, typer.Option(help="Statistics from `refiner noise fit`. Default: the bundled ones.")
    ] = None,
    strength: Annotated[float, typer.Option(help="Strength of the noise: Refiner's alpha.")] = 3.0,
    white: Annotated[float, typer.Option(help="Deviation of the noise's white part: Refiner's white.")] = 0.8,
    root: Root = None,
    size: Size = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Predict how much of your own images is left under the noise, by the best linear estimate of them."""
    with one_line_errors(command):
        from refiner.data import load_images
        from refiner.shaped_noise import NaturalNoise, predict_psnr

        chosen = None if statistics is None else NaturalNoise.load(statistics)
        images = load_images(data, root=root, size=size, limit=_LIMIT)
        prediction = predict_psnr(images, chosen, strength=strength, white=white, seed=seed)
        if prediction.warning is not None:
            print_line(f"warning: {prediction.warning}")
        if as_json:
            print_json({**asdict(prediction), "warning": prediction.warning})
            return
        rows = {
            f"best linear estimate under noise of strength {prediction.strength:g}": prediction.wiener_psnr,
            "blind guess: their own mean colour": prediction.own_colour_psnr,
            "blind guess: the mean image": prediction.mean_image_psnr,
        }
        for name, value in rows.items():
            console.print(f"{value:5.1f} dB  {name}", highlight=False)
        console.print(f"{prediction.visible:5.1%}     visible in the best linear estimate", highlight=False)
