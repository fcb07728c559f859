"""Rounds a second of the local engine, beside a plain PyTorch loop of the same training, in the same run.

    python benchmarks/federation.py [--models lenet] [--clients 10 100] [--defenses none refiner] [--out FILE]

FedSGD, batches of 128 from random images (the rate does not depend on them), two a client: from the third
round on a Refiner with a warm start has met all of them. The loop: one client after
another, `loss.backward()`, the mean of their gradients, `torch.optim.SGD`; no defence and no checks. With
`--local-steps` it is FedAvg: the loop then walks each client's steps and takes the mean of where they end,
and `one_by_one` is the engine's own rate with one client after another.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.core import Task
from refiner.defenses import make_defense
from refiner.federation import FedAvg, Schedule, Training
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.models import NAMES, build

BATCH = 128
PASS = 2


def rate(round: Callable[[int], object], seconds: float, before: int = 3) -> float:
    """Rounds a second, after so many that are not counted."""
    number = 0

    def once() -> None:
        nonlocal number
        number += 1
        round(number)

    def settle() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    for _ in range(before):
        once()
    settle()
    begin, done = time.perf_counter(), 0
    while done < 3 or time.perf_counter() - begin < seconds:
        once()
        done += 1
    settle()
    return done / (time.perf_counter() - begin)


def loop(
    task: Task, images: Tensor, labels: Tensor, parts: list[Tensor], steps: int
) -> Callable[[int], object]:
    """A round of the same training as anyone would write it."""
    model = task.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(part: Tensor) -> Tensor:
        rows = part[torch.randint(len(part), (BATCH,), device=part.device)]
        return F.cross_entropy(model(images[rows].float() / 255), labels[rows])

    def descend(number: int) -> None:
        optimizer.zero_grad()
        for part in parts:
            (loss(part) / len(parts)).backward()
        optimizer.step()

    @torch.no_grad()
    def walk(number: int) -> None:
        values = list(model.parameters())
        start, mean = [v.clone() for v in values], [torch.zeros_like(v) for v in values]
        for part in parts:
            torch._foreach_copy_(values, start)
            for _ in range(steps):
                optimizer.zero_grad()
                with torch.enable_grad():
                    loss(part).backward()
                optimizer.step()
            torch._foreach_add_(mean, values, alpha=1 / len(parts))
        torch._foreach_copy_(values, mean)

    return descend if steps == 1 else walk


def ours(engine: LocalClients, together: bool = True) -> Callable[[int], object]:
    """A round of the local engine, its clients together or one after another."""
    values, server = get_parameters(engine.task), FedAvg()

    def alone(number: int) -> Tensor:
        return torch.stack([engine.move(c, number) for c in engine.schedule.participants(number)]).mean(0)

    def round(number: int) -> None:
        move = engine.moves(number) if together else alone(number)
        values.copy_(server.step(values, move, {})[0])
        set_parameters(engine.task, values)

    return round


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=NAMES)
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--defenses", nargs="+", default=["none", "refiner", "refiner:warm_start=true"])
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    where = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    draws = torch.Generator().manual_seed(0)
    rows = []
    for name in options.models:
        for clients in options.clients:
            torch.manual_seed(0)
            task = Task(build(name).to(device), example=torch.rand(1, 3, 32, 32, device=device))
            samples = PASS * BATCH * clients
            images = torch.randint(256, (samples, 3, 32, 32), generator=draws, dtype=torch.uint8)
            labels = torch.randint(10, (samples,), generator=draws)
            parts = list(torch.randperm(samples, generator=draws).tensor_split(clients))
            here = images.to(device), labels.to(device), [part.to(device) for part in parts]
            plain = rate(loop(task, *here, options.local_steps), options.seconds)
            for text in options.defenses:
                training = Training(clients=clients, batch=BATCH, local_steps=options.local_steps)
                engine = LocalClients.of_study(
                    task, images, labels, Schedule(parts, training), make_defense(text)
                )
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                found = rate(ours(engine), options.seconds, before=PASS + 3)
                row = {
                    "model": name,
                    "clients": clients,
                    "defense": text,
                    "rounds_a_second": digits(found),
                    "plain_loop": digits(plain),
                    "ratio": digits(found / plain),
                }
                if options.local_steps > 1:
                    row["local_steps"] = options.local_steps
                    row["one_by_one"] = digits(rate(ours(engine, together=False), options.seconds))
                if device == "cuda":
                    row["peak_gib"] = digits(torch.cuda.max_memory_allocated() / 2**30)
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.out:
        about = {"device": where, "torch": torch.__version__, "batch": BATCH, "rows": rows}
        options.out.write_text(json.dumps(about, indent=1))


def digits(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()
