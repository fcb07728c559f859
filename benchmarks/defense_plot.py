"""Privacy against gradient error, from the rows of `defense_table.py`.

python benchmarks/defense_plot.py docs/results/defenses.jsonl docs/results/defenses.png
"""

import argparse
import json
import math
from itertools import pairwise
from pathlib import Path

from refiner.data.drawing import Box, Drawing, Line, Words

INK, MUTED, RULE = "#1b1d1f", "#5b5e63", "#d8d5cc"
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
SIDE, HIGH, LEFT, TOP, GAP = 400, 340, 56, 56, 60
# Of the errors shown; smaller ones stand at the left edge, larger ones at the right.
LOW, UP = 1e-3, 10.0
DECIBELS = (8.0, 42.0)

Shape = Box | Line | Words


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path, help="a .png file")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    # A defence's points are one line: those of a second form of it are left to the table.
    rows = [row for row in rows if not row["defense"].endswith("clip=none")]
    shapes: list[Shape] = []
    for place, (key, told) in enumerate(PANELS.items()):
        shapes += panel(rows, key, told, LEFT + place * (SIDE + GAP))
    shapes += legend(TOP + HIGH + 56)
    width, height = LEFT + 2 * SIDE + GAP + 24, TOP + HIGH + 80
    title = "What a tuned InvertingGrad rebuilds, against what a defence does to the gradient"
    shapes.append(Words(LEFT, 24, title, INK, 15))
    options.out.write_bytes(Drawing(width, height, title, shapes).png())


def panel(rows: list[dict[str, object]], key: str, told: str, left: float) -> list[Shape]:
    """One plot: the error on a logarithmic axis, PSNR on the other."""

    def across(error: float) -> float:
        share = math.log(min(max(error, LOW), UP) / LOW) / math.log(UP / LOW)
        return left + share * SIDE

    def down(decibels: float) -> float:
        return TOP + (DECIBELS[1] - decibels) / (DECIBELS[1] - DECIBELS[0]) * HIGH

    shapes: list[Shape] = []
    for power in range(-3, 2):
        x = across(10.0**power)
        shapes += [
            Line(x, TOP, x, TOP + HIGH, RULE),
            Words(x, TOP + HIGH + 16, f"{10.0**power:g}", MUTED, 11, "middle"),
        ]
    for level in range(10, 45, 5):
        shapes += [
            Line(left, down(level), left + SIDE, down(level), RULE),
            Words(left - 6, down(level) + 4, str(level), MUTED, 11, "end"),
        ]
    blind = down(float(str(rows[0]["blind_psnr"])))
    shapes += [
        Line(left, blind, left + SIDE, blind, MUTED),
        Words(left + 4, blind - 4, "blind guess", MUTED, 11),
        Words(left + SIDE / 2, TOP + HIGH + 32, f"relative gradient error, {told}", INK, 12, "middle"),
        Words(left, TOP - 8, "PSNR of the reconstruction, dB", INK, 12),
    ]
    for name, colour in COLOURS.items():
        points = sorted(
            (across(float(str(row[key]))), down(float(str(row["psnr"]))), str(row["defense"]))
            for row in rows
            if str(row["defense"]).partition(":")[0] == name
        )
        shapes += [Line(*one[:2], *other[:2], colour) for one, other in pairwise(points)]
        size = 10 if len(points) == 1 else 6
        shapes += [Box(x - size / 2, y - size / 2, size, size, colour, told) for x, y, told in points]
    return shapes


def legend(top: float) -> list[Shape]:
    """A box and a name for each defence."""
    shapes: list[Shape] = []
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + place * 120
        shapes += [Box(x, top, 10, 10, colour), Words(x + 16, top + 10, name, INK, 12)]
    return shapes


if __name__ == "__main__":
    main()
