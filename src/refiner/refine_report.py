"""`refiner refine`: what Refiner does to single images, as numbers and as an HTML page of images."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from refiner.core import Task
from refiner.defenses import Defense, NoDefense
from refiner.errors import SettingError
from refiner.evaluation import EvaluationNetwork
from refiner.report import Comparison, ImageRow, InlineImage, Page, Table, to_pixels, write_page

COLUMNS = (
    "defence",
    "noise ratio",
    "MSE",
    "relative distance",
    "least layer",
    "ms",
)


@dataclass(frozen=True, eq=False)
class RefinedImages:
    """The robust data of single images under one defence, and means over all images."""

    name: str
    robust: Tensor
    """`[N, C, H, W]`"""
    noise_ratio: float
    squared_error: float
    relative_distance: float
    least_layer_distance: float
    """The relative distance of the layer that is closest to its real gradient: a quiet layer beside loud ones
    may show the image although the whole gradient is far from the real one."""
    milliseconds: float

    def record(self) -> dict[str, str | float]:
        """The name and the means, without the images."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "robust"}

    def cells(self) -> tuple[str, ...]:
        """The row of a table, in the order of `COLUMNS`."""
        numbers = (
            self.noise_ratio,
            self.squared_error,
            self.relative_distance,
            self.least_layer_distance,
        )
        return (self.name, *(f"{value:.3f}" for value in numbers), f"{self.milliseconds:.1f}")


def refine_each(
    task: Task,
    images: Tensor,
    labels: Tensor,
    defenses: Mapping[str, Defense],
    *,
    seed: int | None = None,
    chunk: int = 20,
    on_progress: Callable[[str, int], None] = lambda name, done: None,
) -> list[RefinedImages]:
    """Refine every image by itself (B = 1) with every defence.

    Args:
        task: The model and its loss.
        images: `[N, C, H, W]` in 0..1.
        labels: `[N]`.
        defenses: Defences that craft robust data, by the name to show.
        seed: For a repeatable run; None draws from the operating system.
        chunk: Number of images refined at a time.
        on_progress: Called with the defence's name and the number of images done since the last call.

    Returns:
        One entry per defence, after one for the raw images.

    Raises:
        SettingError: If a defence crafts no robust data.
    """
    network = EvaluationNetwork.bundled(images.device)
    x, y = images[:, None], labels[:, None]
    real = NoDefense().protect(task, x, y).flat()
    rows = [RefinedImages("none", images, float(network.score(images).mean()), 0.0, 0.0, 0.0, 0.0)]
    for name, defense in defenses.items():
        state = defense.init_state(len(x))
        robust_chunks, uploads, seconds = [], [], 0.0
        for first in range(0, len(x), chunk):
            part = slice(first, first + chunk)
            ids = torch.arange(len(x), device=x.device)[part, None]
            started = time.perf_counter()
            protection = defense.protection(task, x[part], y[part], ids=ids, seed=seed, state=state)
            seconds += time.perf_counter() - started
            if protection.robust is None:
                raise SettingError(
                    f"defense = {defense.name}: crafts no robust data", field="defense", value=defense.name
                )
            uploads.append(protection.update.flat())
            robust_chunks.append(protection.robust[:, 0])
            on_progress(name, len(x[part]))
        robust = torch.cat(robust_chunks)
        upload = torch.cat(uploads)
        distance = (upload - real).norm(dim=1)
        rows.append(
            RefinedImages(
                name,
                robust,
                float(network.score(robust).mean()),
                float((robust - images).square().mean()),
                float((distance / real.norm(dim=1)).mean()),
                least_layer_distance(task, upload, real),
                1000 * seconds / len(x),
            )
        )
    return rows


def least_layer_distance(task: Task, uploads: Tensor, real: Tensor) -> float:
    """The smallest mean relative distance of a layer's uploaded gradient from its real one.

    Args:
        task: The model and its loss.
        uploads: Uploaded gradients `[V, N]`.
        real: Real gradients `[V, N]`.

    Returns:
        The distance of that layer. Layers whose real gradient is zero for a victim do not count for it.
    """
    distances, first = [], 0
    for layer in task.layers:
        part = slice(first, first + sum(task.shapes[name].numel() for name in layer.parameters))
        first, norm = part.stop, real[:, part].norm(dim=1)
        if bool((norm > 0).any()):
            relative = (uploads[:, part] - real[:, part]).norm(dim=1) / norm
            distances.append(float(relative[norm > 0].mean()))
    return min(distances, default=0.0)


def write_refine_page(
    path: Path, rows: list[RefinedImages], titles: list[str], *, source: str, model: str, shown: int = 10
) -> Path:
    """Write one self-contained HTML page with the first `shown` images of every row and the table.

    Args:
        path: The file to write.
        rows: The result of `refine_each`.
        titles: A title per image.
        source: Where the images come from.
        model: The name of the model.
        shown: Number of images shown.

    Returns:
        The path of the page.
    """
    comparison = Comparison(
        title="Raw and robust images",
        note="Each column is one image. Values outside 0..1 are clipped for display only.",
        rows=[
            ImageRow(
                "raw" if row.name == "none" else row.name,
                [
                    InlineImage(to_pixels(image.cpu()), f"{title}, {row.name}", title)
                    for image, title in zip(row.robust[:shown], titles, strict=False)
                ],
            )
            for row in rows
        ],
    )
    table = Table(
        title="Privacy and utility of the robust images",
        columns=list(COLUMNS),
        rows=[list(row.cells()) for row in rows],
        note=(
            "Means over all images, each refined by itself. The noise ratio is the evaluation network's "
            "prediction for the robust image, the MSE its difference from the raw one. Distances are those "
            "between the uploaded and the real gradient, relative to the norm of the real one: of the whole "
            "gradient, and of the layer where that is least."
        ),
    )
    page = Page(
        title="Raw and robust images",
        summary="The client keeps the raw images and uploads the gradients of the robust images instead.",
        facts=[("images", str(len(rows[0].robust))), ("source", source), ("model", model)],
        sections=[comparison, table],
        made=datetime.now(UTC),
    )
    return Path(write_page(path, page))
