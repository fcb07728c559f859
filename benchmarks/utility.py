"""What defences cost in accuracy: the same federated training with each, and PMM, the share that is kept.

    python benchmarks/utility.py --data cifar10 --out FOLDER [--model lenet] [--only none …] [--minutes 3]

Runs `refiner train`'s own experiments; `--data` is a source that `refiner data get` has brought. `none` comes
first: PMM compares with its accuracy after the same number of rounds. One JSON object a training in
`utility.jsonl`. With `--minutes` a training ends after that time and is reported as far as it came.
"""

import argparse
import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from refiner.federation import Experiment, Training, run_experiment
from refiner.models import NAMES

DEFENSES = [
    "none",
    "refiner",
    "refiner-paper:epsilon=0.1",
    *(f"dp-gaussian:magnitude={m},clip={c}" for m in ("1e-3", "1e-2", "1e-1") for c in ("1", "none")),
    "gq:bits=8",
    "pruning:rate=0.8",
    "soteria:rate=0.5,sensitivity=estimated",
]


class Enough(Exception):
    """The time is over."""


def run(experiment: Experiment, folder: Path, device: torch.device, minutes: float) -> dict[str, object]:
    """One training, as far as it comes."""
    begin, done, curve = time.perf_counter(), 0, []

    def tell(rounds: int, score: float | None) -> None:
        nonlocal done
        done = rounds
        if score is not None:
            curve.append((rounds, score))
            print(f"{experiment.defense}: {rounds} rounds, {100 * score:.2f} %", flush=True)
            if time.perf_counter() - begin > 60 * minutes:
                raise Enough

    with contextlib.suppress(Enough):
        run_experiment(experiment, folder, device=device, checkpoint_every=10**6, on_round=tell)
    seconds = time.perf_counter() - begin
    return {"curve": curve, "seconds": round(seconds, 1), "rounds_a_second": round(done / seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="lenet", choices=NAMES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=DEFENSES)
    parser.add_argument("--rounds", type=int, default=8000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--every", type=int, default=500, metavar="ROUNDS", help="between evaluations")
    parser.add_argument("--minutes", type=float, default=1e9, help="for each training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options.rounds, options.clients, lr=options.lr, seed=options.seed)
    every = min(options.every, options.rounds)
    plain = Experiment(data=options.data, model=options.model, training=training, evaluate_every=every)
    kept: dict[int, float] = {}
    for number, name in enumerate(options.only):
        folder = options.out / f"{options.data}-{options.model}-{options.clients}-{number}"
        row = run(replace(plain, defense=name), folder, device, options.minutes)
        reached, score = row["curve"][-1]
        if name == "none":
            kept = dict(row["curve"])
        row |= {"accuracy": score, "rounds": reached, "clients": options.clients, "seed": options.seed}
        row["pmm"] = round(100 * score / kept[reached], 2) if reached in kept else None
        told = {"data": options.data, "model": options.model, "defense": name, **row}
        print(json.dumps(told), flush=True)
        with (options.out / "utility.jsonl").open("a") as log:
            print(json.dumps(told), file=log)


if __name__ == "__main__":
    main()
