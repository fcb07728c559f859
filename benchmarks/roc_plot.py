"""Plot of ROC curves of membership attacks with their bands, on logarithmic axes.

    python benchmarks/roc_plot.py docs/results docs/results/membership.png [--attack likelihood:clients=300]

Reads the rows of membership.jsonl that `membership.py --roc` wrote, one panel for each state of the model.
Bands are 95 % intervals that resample clients. Needs matplotlib, from the extra `plot`. Draws the figure of
docs/membership.md.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

COLOURS = {
    "none": "#1b1c1e",
    "refiner": "#d62728",
    "refiner:search=never": "#9c755f",
    "refiner:white=0": "#e08585",
    "refiner:white=0,search=never": "#c9b2a2",
    "dp-gaussian:magnitude=1e-2,clip=1": "#4e79a7",
    "dp-gaussian:magnitude=1e-1,clip=none": "#76b7b2",
}
STATES = {"initial": "untrained", "trained": "after 3,000 rounds"}
LOWEST = 1e-3


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the folder of membership.jsonl")
    parser.add_argument("out", type=Path, help="a .png file")
    parser.add_argument("--attack", default="likelihood:clients=300")
    options = parser.parse_args(argv)
    from matplotlib.figure import Figure

    lines = (options.results / "membership.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for line in lines if "ROC" in (row := json.loads(line)) and row["attack"] == options.attack]
    figure = Figure(figsize=(11, 5.2), dpi=140, layout="constrained")
    figure.suptitle("Members found by the likelihood match, 64 clients × 16 CIFAR-10 images, LeNet")
    panels = figure.subplots(1, len(STATES), sharey=True)
    for axes, (state, title) in zip(panels, STATES.items(), strict=True):
        axes.plot([LOWEST, 1], [LOWEST, 1], color="#5b5e63", linewidth=1, label="guessing")
        for defense, colour in COLOURS.items():
            for row in rows:
                if (row["state"], row["defense"]) != (state, defense):
                    continue
                fpr, tpr, low, high = zip(*row["ROC"], strict=True)
                axes.plot(fpr, tpr, color=colour, label=defense)
                axes.fill_between(fpr, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(title=title, xscale="log", yscale="log", xlim=(LOWEST, 1), ylim=(LOWEST, 1.05))
        axes.set_xlabel("false-positive rate")
        axes.grid(color="#d8d5cc", linewidth=0.7)
    panels[0].set_ylabel("true-positive rate")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
