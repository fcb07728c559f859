"""Accuracy of federated training with each defence, and PMM: accuracy in percent of undefended training.

    python benchmarks/utility.py --data cifar10 --out FOLDER [--model lenet] [--only none …] [--minutes 3]

Runs the experiments of `refiner train`; get `--data` with `refiner data fetch` first. `none` comes first,
as PMM compares with its accuracy after the same number of rounds. With `--minutes` a training is stopped
after that time and reported as far as it got; the same command continues it. Feeds
docs/results/utility.jsonl, which docs/results/federation.md shows.
"""

import argparse
import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from refiner.federation import Experiment, FederatedSettings, run_experiment
from refiner.models import MODELS
from rows import append_rows

DEFENSES = [
    "none",
    "refiner",
    "refiner-paper:epsilon=0.1",
    *(f"dp-gaussian:magnitude={m},clip={c}" for m in ("1e-3", "1e-2", "1e-1") for c in ("1", "none")),
    "gq:bits=8",
    "pruning:rate=0.8",
    "soteria:rate=0.5,sensitivity=estimated",
]


class TimeIsOver(Exception):
    """Raised to stop a training after `--minutes`."""


def run(experiment: Experiment, folder: Path, device: torch.device, minutes: float) -> dict[str, object]:
    """Run or continue one training until it ends or the time is over."""
    start, first, last = time.perf_counter(), 0, 0

    def on_round(rounds: int, score: float | None) -> None:
        nonlocal first, last
        first, last = first or rounds, rounds
        if score is not None:
            print(f"{experiment.defense}: {rounds} rounds, {100 * score:.2f} %", flush=True)
            if time.perf_counter() - start > 60 * minutes:
                raise TimeIsOver

    every = experiment.evaluate_every
    with contextlib.suppress(TimeIsOver):
        run_experiment(
            experiment, folder, device=device, checkpoint_every=every, resume=True, on_round=on_round
        )
    seconds = time.perf_counter() - start
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {
        "curve": [(line["round"], line["accuracy"]) for line in log],
        "seconds": round(seconds, 1),
        "rounds_a_second": round((last - first + 1) / seconds, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="lenet", choices=MODELS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=DEFENSES)
    parser.add_argument("--rounds", type=int, default=8000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--sampled", type=int, metavar="CLIENTS", help="clients in a round, all by default")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--every", type=int, default=500, metavar="ROUNDS", help="rounds between evaluations")
    parser.add_argument("--minutes", type=float, default=1e9, help="time limit of each training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    settings = FederatedSettings(
        options.rounds, options.clients, sampled=options.sampled, lr=options.lr, seed=options.seed
    )
    every = min(options.every, options.rounds)
    base = Experiment(data=options.data, model=options.model, training=settings, evaluate_every=every)
    reference_curve: dict[int, float] = {}
    for name in options.only:
        settings_text = re.sub(r"[^a-z0-9.]+", "-", f"{options.data} {name} rate {options.lr:g}")
        clients = f"{settings.clients_per_round}of{options.clients}"
        folder = options.out / f"{options.model}-{clients}-seed{options.seed}-{settings_text}"
        row = run(replace(base, defense=name), folder, device, options.minutes)
        last_round, score = row["curve"][-1]
        if name == "none":
            reference_curve = dict(row["curve"])
        row |= {"accuracy": score, "rounds": last_round, "clients": options.clients, "seed": options.seed}
        row |= {"lr": options.lr, "sampled": settings.clients_per_round}
        row["pmm"] = (
            round(100 * score / reference_curve[last_round], 2) if last_round in reference_curve else None
        )
        record = {"data": options.data, "model": options.model, "defense": name, **row}
        print(json.dumps(record), flush=True)
        append_rows(options.out / "utility.jsonl", [record])


if __name__ == "__main__":
    main()
