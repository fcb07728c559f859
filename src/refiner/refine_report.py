"""Refine images and show them: the numbers of each defence, raw and robust images side by side."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from refiner.core import Task
from refiner.defenses import NoDefense, Refiner
from refiner.evaluation import EvaluationNetwork
from refiner.report import Comparison, ImageRow, InlineImage, Page, Table, to_pixels, write_page

COLUMNS = (
    "defence",
    "noise ratio",
    "MSE to the raw image",
    "gradient distance",
    "relative",
    "ms an image",
)


@dataclass(frozen=True, eq=False)
class Refined:
    """What one defence makes of single images, in means over all of them."""

    name: str
    robust: Tensor
    """`[N, C, H, W]`"""
    noise_ratio: float
    squared_error: float
    distance: float
    relative_distance: float
    milliseconds: float

    def cells(self) -> tuple[str, ...]:
        """The row of a table, in the order of `COLUMNS`."""
        numbers = (self.noise_ratio, self.squared_error, self.distance, self.relative_distance)
        return (self.name, *(f"{value:.3f}" for value in numbers), f"{self.milliseconds:.1f}")


def refine_each(
    task: Task,
    images: Tensor,
    labels: Tensor,
    defenses: Mapping[str, Refiner],
    *,
    seed: int | None = None,
    chunk: int = 20,
    on_progress: Callable[[str, int], None] = lambda name, done: None,
) -> list[Refined]:
    """Refine every image alone (B = 1), by every defence; the first row is the raw images."""
    network = EvaluationNetwork.bundled(images.device)
    x, y = images[:, None], labels[:, None]
    real = NoDefense().protect(task, x, y).flat()
    rows = [Refined("none", images, float(network.score(images).mean()), 0.0, 0.0, 0.0, 0.0)]
    for name, defense in defenses.items():
        robust, uploads, spent = [], [], 0.0
        for begin in range(0, len(x), chunk):
            part = slice(begin, begin + chunk)
            ids = torch.arange(len(x), device=x.device)[part, None]
            began = time.perf_counter()
            robust_chunk, update = defense.refine(task, x[part], y[part], ids=ids, seed=seed)
            spent += time.perf_counter() - began
            uploads.append(update.flat())
            robust.append(robust_chunk[:, 0])
            on_progress(name, len(x[part]))
        found = torch.cat(robust)
        distance = (torch.cat(uploads) - real).norm(dim=1)
        rows.append(
            Refined(
                name,
                found,
                float(network.score(found).mean()),
                float((found - images).square().mean()),
                float(distance.mean()),
                float((distance / real.norm(dim=1)).mean()),
                1000 * spent / len(x),
            )
        )
    return rows


def write_exhibit(
    path: Path, rows: list[Refined], titles: list[str], *, source: str, model: str, shown: int = 10
) -> Path:
    """One self-contained HTML page: the first `shown` images of every row, and the table."""
    comparison = Comparison(
        title="Raw and robust images",
        note="Each column is one image. Values outside 0..1 are clipped for the eye, not for the gradient.",
        rows=[
            ImageRow(
                "raw" if row.name == "none" else row.name,
                [
                    InlineImage(to_pixels(p.cpu()), f"{t}, {row.name}", t)
                    for p, t in zip(row.robust[:shown], titles, strict=False)
                ],
            )
            for row in rows
        ],
    )
    table = Table(
        title="In numbers",
        columns=list(COLUMNS),
        rows=[list(row.cells()) for row in rows],
        note=(
            "Means over all images, each refined alone. The noise ratio is what the evaluation network "
            "reads in the robust image; the gradient distance is that of what leaves to the real gradient."
        ),
    )
    page = Page(
        title="What leaves, and what stays",
        summary="The client keeps the raw images and uploads gradients of the robust ones instead.",
        facts=[("images", str(len(rows[0].robust))), ("source", source), ("model", model)],
        parts=[comparison, table],
        made=datetime.now(UTC),
    )
    return Path(write_page(path, page))
