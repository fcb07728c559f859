"""Plot of accuracy against the strongest attack, for every defence, from the rows of two benchmarks.

    python benchmarks/front_plot.py docs/results docs/results/front.png

Reads learned.jsonl and known-metric.jsonl (`learned_attack.py`, single images), defenses.jsonl
(`defense_table.py`, tuned InvertingGrad at the initial model), and utility.jsonl (`utility.py`, ten clients ×
8,000 rounds; the paper's settings 7,500). A point is a setting: its PMM, the mean over seeds, and the highest
PSNR and top-1 of all attacks at all states of the model. It is hollow where the PMM is that of one client
after 3,000 rounds. Only settings attacked at both states are drawn. Single images are not searched for, so
`search=never` has the attacks of the same strength and its own PMM. Needs matplotlib, from the extra `plot`.
Draws the figure of docs/results/learned.md.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "none": "#1b1c1e",
    "refiner": "#d62728",
    "refiner, no white noise": "#7f1d1d",
    "refiner, never": "#9c755f",
    "dp-gaussian": "#76b7b2",
    "gq": "#b07aa1",
    "pruning": "#59a14f",
    "soteria": "#4e79a7",
    "refiner, only white noise": "#ff9da7",
    "refiner-paper": "#f28e2b",
}
NEVER = {
    "refiner:white=0,search=never": "refiner:white=0",
    "refiner:white=0,search=never,alpha=2": "refiner:white=0,alpha=2",
    "refiner:white=0,search=never,alpha=1": "refiner:white=0,alpha=1",
}
STATES = {"initial", "trained"}
PANELS = {"PSNR": "PSNR of the strongest attack, dB", "top-1": "share identified among 1,000"}
NO_ATTACK, VICTIMS = "from-robust", 1000
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The rows of a `.jsonl` file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tuned_rows(table: list[Row]) -> list[Row]:
    """The rows of `defense_table.py` in the form of those of `learned_attack.py`."""
    setting = {"model": "lenet", "state": "initial", "attack": "inverting", "batch": 1}
    return [
        setting | {"defense": row["defense"], "PSNR": row["psnr"], "top-1": row["top1_pixels"]}
        for row in table
    ]


def settings(attacks: list[Row], trainings: list[Row]) -> list[Row]:
    """One point for each setting that was attacked at both states and trained."""
    kept = accuracies(trainings, clients=1) | accuracies(trainings, clients=10)
    by_defense = defaultdict(list)
    for row in attacks:
        is_attack = row["attack"] != NO_ATTACK and row.get("victims", VICTIMS) == VICTIMS
        if row["batch"] == 1 and row["model"] == "lenet" and is_attack:
            by_defense[row["defense"]].append(row)
    for name, attacked_as in NEVER.items():
        drawn_as = name.replace(":white=0,search=", ", ")
        kept[drawn_as] = kept[name]
        by_defense[drawn_as] = by_defense[attacked_as]
    return [
        {"defense": name, **kept[name]} | {key: max(row[key] for row in rows) for key in PANELS}
        for name, rows in by_defense.items()
        if name in kept and {row["state"] for row in rows} >= STATES
    ]


def accuracies(trainings: list[Row], clients: int) -> dict[str, Row]:
    """The PMM of each defence, of its longest trainings with so many clients."""
    runs = defaultdict(list)
    for row in trainings:
        if (row["model"], row["data"], row.get("sampled") or row["clients"]) == ("lenet", "cifar10", clients):
            runs[row["defense"].removesuffix(",sensitivity=estimated")].append(row)
    kept = {}
    for defense, rows in runs.items():
        longest = [row["pmm"] for row in rows if row["rounds"] == max(other["rounds"] for other in rows)]
        kept[defense] = {"pmm": sum(longest) / len(longest), "clients": clients}
    return kept


def family(defense: str) -> str:
    """The defence without its strength."""
    if defense.startswith("refiner:start=centred"):
        return "refiner, only white noise"
    if defense.startswith("refiner:white=0") and not defense.startswith("refiner:white=0."):
        return "refiner, no white noise"
    return "refiner, never" if defense.startswith("refiner, never") else defense.partition(":")[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the folder of the .jsonl files")
    parser.add_argument("out", type=Path, help="a .png file")
    options = parser.parse_args(argv)
    from matplotlib.figure import Figure

    attacks = [row for name in ("learned", "known-metric") for row in read(options.results / f"{name}.jsonl")]
    attacks += tuned_rows(read(options.results / "defenses.jsonl"))
    points = settings(attacks, read(options.results / "utility.jsonl"))
    guess = {"PSNR": attacks[0]["own mean colour"], "top-1": 1 / 1000}
    figure = Figure(figsize=(11, 5.2), dpi=140, layout="constrained")
    figure.suptitle("Accuracy kept against the strongest attack on single images, initial or trained model")
    for axes, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        axes.axhline(guess[key], color="#5b5e63", linewidth=1)
        axes.annotate("blind guess", (45, guess[key]), (2, 4), textcoords="offset points", color="#5b5e63")
        for name, colour in COLOURS.items():
            own = [p for p in points if family(p["defense"]) == name]
            if not own:
                continue
            line = sorted((p["pmm"], p[key]) for p in own)
            axes.plot(*zip(*line, strict=True), color=colour, marker="o", label=name)
            hollow = [(p["pmm"], p[key]) for p in own if p["clients"] == 1]
            if hollow:
                axes.plot(*zip(*hollow, strict=True), color=colour, marker="o", ls="", mfc="white")
        axes.set(xlabel="accuracy relative to undefended training, %", ylabel=label, xlim=(18, 104))
        axes.grid(color="#d8d5cc", linewidth=0.7)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
