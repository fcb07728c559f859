"""Cost of each defence: time of `protect` relative to a plain gradient, with the paper's ratios, at B = 128.

    python benchmarks/defense_cost.py [--models lenet resnet18] [--out FILE]

A defence is timed as a user calls it, with all checks; the plain gradient is computed in full float32 too,
and on a GPU replayed from a CUDA graph. The paper has no row for a plain gradient, so its GQ row is the
divisor of its ratios. Feeds docs/results/defense-cost.jsonl, which docs/results/cost.md shows.
"""

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from refine_cost import median_ms
from refiner.core import Task, flatten, gradients
from refiner.core.cuda_graphs import CudaGraphCache
from refiner.core.precision import tensor_float32
from refiner.data import load_sample
from refiner.defenses import Defense, Refiner, make_defense
from refiner.models import MODELS, make_model
from rows import append_rows

DEFENSES = {
    "pruning": "pruning:rate=0.8",
    "gaussian": "dp-gaussian:magnitude=0.01",
    "laplace": "dp-laplace:magnitude=0.01",
    "gaussian, per sample": "dp-gaussian:magnitude=0.01,per_sample=true",
    "gq": "gq:bits=8",
    "soteria": "soteria:sensitivity=estimated",
    "soteria, exact": "soteria:sensitivity=exact",
    "soteria, original": "soteria:variant=original,sensitivity=estimated",
}
# Seconds per client and round on an A10; the paper's ViT is a different one.
PAPER = {
    "pruning": (0.0187, 0.0495, 0.0873, 0.1370, 1.1232),
    "gaussian": (0.0467, 0.7317, 1.8408, 3.3020, 15.5051),
    "laplace": (0.0469, 0.7322, 1.8414, 3.3025, 15.5236),
    "gq": (0.0179, 0.0277, 0.0514, 0.1050, 0.4489),
    "soteria": (0.4103, 11.3148, 21.7539, 39.4410, 347.5668),
    "refiner": (0.3340, 1.7341, 2.8539, 4.7012, 30.2268),
    "refiner, warm": (0.1418, 0.8523, 1.4262, 2.3548, 15.0234),
}
PAPER_MODELS = ("lenet", "resnet10", "resnet18", "resnet34", "vit")


def papers_ratio(name: str, model: str) -> float | None:
    """The paper's time for this defence divided by its time for GQ."""
    column = PAPER_MODELS.index(model)
    return round(PAPER[name][column] / PAPER["gq"][column], 2) if name in PAPER else None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(PAPER_MODELS), choices=list(MODELS))
    parser.add_argument("--only", nargs="+", help="names of defences; all if left out")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    device_name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    print(f"{device_name}, torch {torch.__version__}")
    sample, rows = load_sample(), []
    for model in options.models:
        torch.manual_seed(0)
        index = torch.randint(len(sample.images), (1, options.batch))
        x, y = sample.images[index].to(device), sample.labels[index].to(device)
        ids = torch.arange(options.batch, device=device)[None]
        task = Task(make_model(model).to(device), example=x[0, :2])
        replay = CudaGraphCache()

        def plain(data: Tensor, task: Task = task, y: Tensor = y) -> tuple[Tensor]:
            with tensor_float32(False):
                return (flatten(gradients(task, data, y)),)

        plain_ms = median_ms(lambda replay=replay, plain=plain, x=x: replay("plain", plain, [x]), device)
        defenses: dict[str, Defense] = {name: make_defense(text) for name, text in DEFENSES.items()}
        defenses |= {"refiner": Refiner(error_feedback=False), "refiner, never": Refiner(search="never")}
        for name, defense in defenses.items():
            if options.only and name not in options.only:
                continue
            state = defense.init_state()
            defense_ms = median_ms(
                lambda d=defense, task=task, x=x, y=y, ids=ids, state=state: d.protect(
                    task, x, y, ids=ids, state=state
                ),
                device,
                0.3,
            )
            row = {
                "model": model,
                "defense": name,
                "plain_ms": round(plain_ms, 3),
                "ms": round(defense_ms, 3),
                "ratio": round(defense_ms / plain_ms, 2),
                "papers_ratio": papers_ratio(name, model),
                "wire_bytes": defense.wire_bytes(task.shapes),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        append_rows(options.out, rows, batch=options.batch)


if __name__ == "__main__":
    main()
