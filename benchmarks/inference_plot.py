"""Plot of what inference attacks find against the accuracy that a defence keeps, from committed rows.

    python benchmarks/inference_plot.py docs/results docs/results/inference.png

Reads inference.jsonl and inference-training.jsonl (`inference_comparison.py`), and white-box.jsonl, rows of
its `--membership-attacks white-box`, if they are kept apart. A panel is a question and a model, a line a
defence over its strengths; of membership each point shows the attack with the higher mean. Across: accuracy
in percent of undefended training (PMM), the mean over the seeds that were trained. Up: the AUC of the attack,
the mean over seeds, with its 95 % interval; small dots are single seeds. A setting that was not trained is
not drawn, nor are attacks on trained models.
Needs matplotlib, from the extra `plot`. docs/attributes.md and docs/membership.md say what is asked.
"""

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

from inference_questions import TRAINED_ON

COLOURS = {
    "none": "#1b1c1e",
    "refiner": "#d62728",
    "refiner:search=always": "#b07aa1",
    "refiner:search=never": "#ff9da7",
    "refiner-paper": "#f28e2b",
    "soteria": "#4e79a7",
    "recup": "#59a14f",
    "dp-gaussian": "#76b7b2",
}
TITLES = {
    "membership": "membership, CIFAR-10",
    "membership-lfw": "membership, LFW",
    "gender": "gender, LFW",
    "person": "one man or others, LFW",
}
# 97.5 % quantiles of Student's t for a number of seeds.
STUDENT = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57}
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The rows of a `.jsonl` file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def family(defense: str) -> str:
    """The line that a defence belongs to.

    >>> family("refiner:search=never,alpha=1"), family("soteria:rate=0.9")
    ('refiner:search=never', 'soteria')
    """
    name, _, settings = defense.partition(":")
    search = [setting for setting in settings.split(",") if setting.startswith("search=")]
    return ":".join([name, *search])


def strength(defense: str) -> float:
    """The last number of a defence's settings, by which its points are joined.

    >>> strength("refiner:search=never,alpha=1.5"), strength("dp-gaussian:magnitude=1e-3,clip=none")
    (1.5, 0.001)
    """
    numbers = re.findall(r"=(\d[\d.e-]*)", defense)
    return float(numbers[-1]) if numbers else 0.0


def pmm(trainings: Sequence[Row]) -> dict[tuple[str, str, str], float]:
    """Accuracy in percent of the undefended training of the same seed, by task, model and defence."""
    kinds = ("trained on", "model", "batch", "rounds", "lr", "seed")
    plain = {tuple(row[k] for k in kinds): row["accuracy"] for row in trainings if row["defense"] == "none"}
    found = defaultdict(list)
    for row in trainings:
        reference = plain.get(tuple(row[k] for k in kinds))
        if reference:
            key = (row["trained on"], row["model"], row["defense"])
            found[key].append(100 * row["accuracy"] / reference)
    return {key: sum(values) / len(values) for key, values in found.items()}


def points(attacks: Sequence[Row], trainings: Sequence[Row]) -> list[Row]:
    """One point for each question, model and defence that was attacked and trained.

    The interval of a mean over seeds adds the squares of the seeds' intervals, as their clients and weights
    are drawn anew; where the seeds differ more than that, it is that of their own mean, by Student's t.
    That of two seeds spans the intervals of both.
    """
    kept = pmm(trainings)
    groups: dict[tuple[str, str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for row in attacks if row["state"] == "initial"):
        groups[row["question"], row["model"], row["defense"]][row["attack"]].append(row)
    found = []
    for (question, model, defense), by in sorted(groups.items(), key=lambda group: strength(group[0][2])):
        utility = kept.get((TRAINED_ON[question], model, defense))
        if utility is None:
            continue
        rows = max(by.values(), key=lambda rows: sum(row["AUC"] for row in rows) / len(rows))
        count = len(rows)
        area = sum(row["AUC"] for row in rows) / count
        factor = STUDENT.get(count, 2.0)
        between = factor * stdev(row["AUC"] for row in rows) / math.sqrt(count) if count > 1 else 0.0
        below = max(between, math.sqrt(sum((row["AUC"] - row["AUC low"]) ** 2 for row in rows)) / count)
        above = max(between, math.sqrt(sum((row["AUC high"] - row["AUC"]) ** 2 for row in rows)) / count)
        if count == 2:
            below = area - min(row["AUC low"] for row in rows)
            above = max(row["AUC high"] for row in rows) - area
        found.append(
            {
                **{"question": question, "model": model, "family": family(defense), "pmm": utility},
                **{"auc": area, "below": below, "above": above, "seeds": [row["AUC"] for row in rows]},
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the folder of the rows")
    parser.add_argument("out", type=Path, help="a .png file")
    options = parser.parse_args(argv)
    from matplotlib.figure import Figure

    attacks, apart = read(options.results / "inference.jsonl"), options.results / "white-box.jsonl"
    attacks += read(apart) if apart.exists() else []
    drawn = points(attacks, read(options.results / "inference-training.jsonl"))
    questions = [name for name in TITLES if any(point["question"] == name for point in drawn)]
    models = sorted({point["model"] for point in drawn})
    size = (max(5.0, 4.2 * len(questions)), 0.9 + 3.4 * len(models))
    figure = Figure(figsize=size, dpi=140, layout="constrained")
    figure.suptitle("What an attack finds against the accuracy that the defence keeps")
    panels = figure.subplots(len(models), len(questions), squeeze=False, sharey=True)
    for model, line in zip(models, panels, strict=True):
        for question, axes in zip(questions, line, strict=True):
            own = [p for p in drawn if (p["question"], p["model"]) == (question, model)]
            axes.set_visible(bool(own))
            _draw(axes, own)
            axes.set_title(f"{TITLES[question]}, {model}", fontsize=10)
            axes.set_xlabel("accuracy relative to undefended training, %")
        line[0].set_ylabel("AUC of the attack, with its 95 % interval")
    labels = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in COLOURS if name in labels]
    figure.legend(
        [labels[name] for name in order],
        order,
        loc="outside lower center",
        ncols=min(len(order), 4),
        frameon=False,
    )
    figure.savefig(options.out)


def _draw(axes: Any, own: Sequence[Row]) -> None:
    """One panel: a line with bars for every defence."""
    axes.axhline(0.5, color="#5b5e63", linewidth=1)
    axes.annotate("chance", (0, 0.5), (2, 3), ("axes fraction", "data"), "offset points", color="#5b5e63")
    for name, colour in reversed(COLOURS.items()):  # the reference is drawn last, on top
        line = [point for point in own if point["family"] == name]  # sorted by strength
        if not line:
            continue
        x, y = ([point[key] for point in line] for key in ("pmm", "auc"))
        bars = [[point[key] for point in line] for key in ("below", "above")]
        axes.errorbar(
            x, y, bars, color=colour, marker="o", markersize=4, capsize=2, linewidth=1.2, label=name
        )
        for point in line:
            if len(point["seeds"]) > 1:
                axes.plot(
                    [point["pmm"]] * len(point["seeds"]), point["seeds"], ".", color=colour, markersize=2
                )
    axes.grid(color="#d8d5cc", linewidth=0.7)
    # A training that fails to converge keeps little; noise can also help a little.
    axes.set(xlim=(-3, max([103, *(point["pmm"] + 3 for point in own)])), ylim=(0.2, 1.02))


if __name__ == "__main__":
    main()
