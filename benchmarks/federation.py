"""Rounds per second of the local training engine and of a plain PyTorch loop of the same training.

    python benchmarks/federation.py [--models lenet] [--clients 10 100] [--defenses none refiner] [--out FILE]

FedSGD on random images, two batches of 128 per client (the rate does not depend on their content): from the
third round on, a Refiner with a warm start has seen all of them. The plain loop takes one client after
another: `loss.backward()`, the mean of the gradients, `torch.optim.SGD`, without a defence and without
checks. With `--local-steps` both run FedAvg, and `one_by_one` is the rate of the engine with one client
after another. Feeds docs/results/federation.jsonl, which docs/results/federation.md shows.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.core import Task
from refiner.defenses import make_defense
from refiner.federation import FedAvg, FederatedSettings, Schedule
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.models import MODELS, make_model
from rows import append_rows

BATCH = 128
BATCHES_PER_CLIENT = 2


def rounds_per_second(run_round: Callable[[int], object], seconds: float, warmup: int = 3) -> float:
    """Rounds per second, after `warmup` rounds that are not timed."""
    number = 0

    def next_round() -> None:
        nonlocal number
        number += 1
        run_round(number)

    def synchronize() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    for _ in range(warmup):
        next_round()
    synchronize()
    start, timed_rounds = time.perf_counter(), 0
    while timed_rounds < 3 or time.perf_counter() - start < seconds:
        next_round()
        timed_rounds += 1
    synchronize()
    return timed_rounds / (time.perf_counter() - start)


def plain_loop(
    task: Task, images: Tensor, labels: Tensor, client_rows: list[Tensor], steps: int
) -> Callable[[int], object]:
    """Return a function that runs one round of the same training in plain PyTorch."""
    model = task.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(rows: Tensor) -> Tensor:
        batch_rows = rows[torch.randint(len(rows), (BATCH,), device=rows.device)]
        return F.cross_entropy(model(images[batch_rows].float() / 255), labels[batch_rows])

    def fedsgd_round(number: int) -> None:
        optimizer.zero_grad()
        for rows in client_rows:
            (loss(rows) / len(client_rows)).backward()
        optimizer.step()

    @torch.no_grad()
    def fedavg_round(number: int) -> None:
        values = list(model.parameters())
        start, mean = [v.clone() for v in values], [torch.zeros_like(v) for v in values]
        for rows in client_rows:
            torch._foreach_copy_(values, start)
            for _ in range(steps):
                optimizer.zero_grad()
                with torch.enable_grad():
                    loss(rows).backward()
                optimizer.step()
            torch._foreach_add_(mean, values, alpha=1 / len(client_rows))
        torch._foreach_copy_(values, mean)

    return fedsgd_round if steps == 1 else fedavg_round


def engine_round(engine: LocalClients, batched: bool = True) -> Callable[[int], object]:
    """Return a function that runs one round of the engine, clients batched or one by one."""
    values, server = get_parameters(engine.task), FedAvg()

    def one_by_one(number: int) -> Tensor:
        return torch.stack(
            [engine.client_update(c, number) for c in engine.schedule.participants(number)]
        ).mean(0)

    def round(number: int) -> None:
        update = engine.mean_update(number) if batched else one_by_one(number)
        values.copy_(server.step(values, update, {})[0])
        set_parameters(engine.task, values)

    return round


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=MODELS)
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--defenses", nargs="+", default=["none", "refiner", "refiner:search=never"])
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    generator = torch.Generator().manual_seed(0)
    results = []
    for name in options.models:
        for clients in options.clients:
            torch.manual_seed(0)
            task = Task(make_model(name).to(device), example=torch.rand(1, 3, 32, 32, device=device))
            samples = BATCHES_PER_CLIENT * BATCH * clients
            images = torch.randint(256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8)
            labels = torch.randint(10, (samples,), generator=generator)
            client_rows = list(torch.randperm(samples, generator=generator).tensor_split(clients))
            on_device = images.to(device), labels.to(device), [rows.to(device) for rows in client_rows]
            loop_rate = rounds_per_second(plain_loop(task, *on_device, options.local_steps), options.seconds)
            for defense in options.defenses:
                settings = FederatedSettings(clients=clients, batch=BATCH, local_steps=options.local_steps)
                engine = LocalClients.seeded(
                    task, images, labels, Schedule(client_rows, settings), make_defense(defense)
                )
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                engine_rate = rounds_per_second(
                    engine_round(engine), options.seconds, warmup=BATCHES_PER_CLIENT + 3
                )
                row = {
                    "model": name,
                    "clients": clients,
                    "defense": defense,
                    "rounds_a_second": three_digits(engine_rate),
                    "plain_loop": three_digits(loop_rate),
                    "ratio": three_digits(engine_rate / loop_rate),
                }
                if options.local_steps > 1:
                    row["local_steps"] = options.local_steps
                    row["one_by_one"] = three_digits(
                        rounds_per_second(engine_round(engine, batched=False), options.seconds)
                    )
                if device == "cuda":
                    row["peak_gib"] = three_digits(torch.cuda.max_memory_allocated() / 2**30)
                results.append(row)
                print(json.dumps(row), flush=True)
    if options.out:
        append_rows(options.out, results, seed=0, batch=BATCH)


def three_digits(value: float) -> float:
    """Round to three significant digits."""
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()
