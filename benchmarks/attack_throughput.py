"""Victim-iterations a second of InvertingGrad, beside a loop over victims, in the same run.

    python benchmarks/attack_throughput.py [--models lenet] [--victims 1 10 100 1000] [--full 1000]

The loop: one victim at a time, plain autograd, `torch.optim.Adam` on the slope's sign, as peers write it.
Where the package breaching is installed, its own InvertingGrad stands beside them.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from breaching_rate import breaching
from refiner.attacks import InvertingGradients, Observation
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.metrics import psnr
from refiner.models import NAMES, build


def loop(task: Task, seen: Observation, y: Tensor, steps: int) -> Tensor:
    """InvertingGrad on one victim, as its reference implementations write it."""
    model, names = task.model, task.names
    sizes = [task.shapes[name].numel() for name in names]
    target = [
        piece.view(task.shapes[name])
        for name, piece in zip(names, torch.split(seen.gradient[0], sizes), strict=True)
    ]
    x = torch.rand(1, *task.input_shape, device=y.device, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=0.1)
    decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * k // 8 for k in (3, 5, 7)], gamma=0.1)
    weights = [model.get_parameter(name) for name in names]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss_function(model(x), y)
        found = torch.autograd.grad(loss, weights, create_graph=True)
        dot = sum((a * b).sum() for a, b in zip(found, target, strict=True))
        lengths = [sum(a.square().sum() for a in part).sqrt() for part in (found, target)]
        variation = (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / 2
        (1 - dot / (lengths[0] * lengths[1]) + 1e-4 * variation).backward()
        x.grad.sign_()
        optimizer.step()
        decay.step()
        x.data.clamp_(0, 1)
    return x.detach()


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock of a call, the GPU's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def one_of(task: Task, x: Tensor, y: Tensor) -> Observation:
    """What an undefended victim uploads."""
    return Observation.of(task, NoDefense().protect(task, x, y))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=NAMES)
    parser.add_argument("--victims", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument(
        "--full", type=int, metavar="VICTIMS", help="also 4,000 iterations, with PSNR beside the loop's"
    )
    parser.add_argument("--compared", type=int, default=3, help="victims that the loop takes to the end")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    sample = load_sample()
    rows: list[dict[str, object]] = []

    def note(**row: object) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    for name in options.models:
        torch.manual_seed(0)
        task = Task(build(name).to(device), example=sample.images[:1].to(device))
        index = torch.arange(max(*options.victims, options.full or 1)) % len(sample.images)
        x, y = sample.images[index, None].to(device), sample.labels[index, None].to(device)
        one = one_of(task, x[0], y[0])
        loop(task, one, y[0], 5)
        steps = min(options.iterations, 50)
        alone = steps / seconds(partial(loop, task, one, y[0], steps))
        note(model=name, formulation="loop", victims=1, victim_iterations_a_second=round(alone, 1))
        if find_spec("breaching"):
            breaching(task, one, y[0], 5)
            peer = steps / seconds(partial(breaching, task, one, y[0], steps))
            note(model=name, formulation="breaching", victims=1, victim_iterations_a_second=round(peer, 1))
        for count in options.victims:
            seen = Observation.of(task, NoDefense().protect(task, x[:count], y[:count]))
            attack = InvertingGradients(iterations=options.iterations)
            InvertingGradients(iterations=3).reconstruct(seen)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            spent = seconds(partial(attack.reconstruct, seen))
            rate = count * options.iterations / spent
            peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
            note(
                model=name,
                formulation="batched",
                victims=count,
                victim_iterations_a_second=round(rate, 1),
                times_the_loop=round(rate / alone, 1),
                peak_gib=peak and round(peak, 2),
            )
        if options.full:
            count, few = options.full, options.compared
            seen = Observation.of(task, NoDefense().protect(task, x[:count], y[:count]))
            found = InvertingGradients().reconstruct(seen)
            ways = {"loop": loop} | ({"breaching": breaching} if find_spec("breaching") else {})
            alone_psnr = {}
            for way, call in ways.items():
                made = [call(task, one_of(task, x[i], y[i]), y[i], 4000) for i in range(few)]
                alone_psnr[f"psnr_{way}"] = round(float(psnr(torch.cat(made), x[:few, 0]).mean()), 2)
            note(
                model=name,
                formulation="batched, 4,000 iterations",
                victims=count,
                seconds=round(found.seconds, 2),
                victim_iterations_a_second=round(count * 4000 / found.seconds, 1),
                psnr_first=round(float(psnr(found.x[:few, 0], x[:few, 0]).mean()), 2),
                **alone_psnr,
            )
    if options.out:
        where = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
        options.out.write_text(
            json.dumps({"device": where, "torch": torch.__version__, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
