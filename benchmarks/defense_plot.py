"""Plot of PSNR against gradient error for every defence, from the rows of `defense_table.py`.

    python benchmarks/defense_plot.py docs/results/defenses.jsonl docs/results/defenses.png

Each defence is one line over the strength that the paper varies; the left panel has the error of a single
image, the right one that of a batch of 128. Needs matplotlib, from the extra `plot`. Draws the figure of
docs/results/defenses.md.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "refiner": "#d62728",
    "refiner-paper": "#f28e2b",
    "soteria": "#4e79a7",
    "pruning": "#59a14f",
    "gq": "#b07aa1",
    "dp-gaussian": "#76b7b2",
    "dp-laplace": "#9c755f",
}
PANELS = {"error": "one image", "error of a batch": "a batch of 128"}
# The setting by which the paper varies each defence, and the white part of Refiner's noise.
STRENGTHS = ("epsilon", "magnitude", "bits", "rate", "white")
# Range of the error axis; values outside it are drawn at its ends.
MIN_ERROR, MAX_ERROR = 1e-3, 10.0
TITLE = "Reconstruction by a tuned InvertingGrad against the error of the uploaded gradient"


def varies_strength_only(defense: str) -> bool:
    """Whether `NAME:setting=value` sets nothing but its strength."""
    settings = defense.partition(":")[2]
    return not settings or ("," not in settings and settings.partition("=")[0] in STRENGTHS)


def draw_panel(axes: Any, rows: list[dict[str, Any]], key: str, label: str) -> None:
    """Draw one panel: PSNR over the gradient error `key`, on a logarithmic axis."""
    guess = float(rows[0]["blind_psnr"])
    axes.axhline(guess, color="#5b5e63", linewidth=1)
    axes.annotate("blind guess", (MIN_ERROR, guess), (4, 4), textcoords="offset points", color="#5b5e63")
    for name, colour in COLOURS.items():
        points = sorted(
            (min(max(float(row[key]), MIN_ERROR), MAX_ERROR), float(row["psnr"]))
            for row in rows
            if name in (row["defense"], row["defense"].partition(":")[0])
        )
        size = 9 if len(points) == 1 else 5  # a single point has no line that draws attention to it
        axes.plot(*zip(*points, strict=True), color=colour, marker="s", markersize=size, label=name)
    axes.set(xscale="log", xlim=(0.9 * MIN_ERROR, 1.1 * MAX_ERROR), ylim=(8, 42))
    axes.set(xlabel=f"relative gradient error, {label}", ylabel="PSNR of the reconstruction, dB")
    axes.grid(color="#d8d5cc", linewidth=0.7)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="the rows of defense_table.py, a .jsonl file")
    parser.add_argument("out", type=Path, help="a .png file")
    options = parser.parse_args(argv)
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    # A defence is one line over its strength: its other forms are left to the tables.
    rows = [row for row in rows if varies_strength_only(row["defense"])]
    figure = Figure(figsize=(10, 5), dpi=160, layout="constrained")
    figure.suptitle(TITLE)
    for axes, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        draw_panel(axes, rows, key, label)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS), frameon=False)
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
