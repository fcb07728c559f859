"""Throughput of InvertingGrad in victim-iterations per second, batched and as a loop over victims.

    python benchmarks/attack_throughput.py [--models lenet] [--victims 1 10 100 1000] [--full 1000]

The loop attacks one victim at a time with plain autograd and `torch.optim.Adam` on the sign of the
gradient, as reference implementations do. Where the package breaching is installed, its own InvertingGrad
is timed in the same run. Feeds docs/results/throughput.jsonl, which docs/results/attacks.md shows.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
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
from refiner.models import MODELS, make_model
from rows import append_rows


def loop(task: Task, observation: Observation, y: Tensor, steps: int) -> Tensor:
    """Reconstruct one victim with InvertingGrad, as its reference implementations do."""
    model, names = task.model, task.names
    sizes = [task.shapes[name].numel() for name in names]
    target = [
        piece.view(task.shapes[name])
        for name, piece in zip(names, torch.split(observation.gradient[0], sizes), strict=True)
    ]
    x = torch.rand(1, *task.input_shape, device=y.device, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=0.1)
    decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * k // 8 for k in (3, 5, 7)], gamma=0.1)
    weights = [model.get_parameter(name) for name in names]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss_function(model(x), y)
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        dot = sum((a * b).sum() for a, b in zip(grads, target, strict=True))
        lengths = [sum(a.square().sum() for a in part).sqrt() for part in (grads, target)]
        variation = (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / 2
        (1 - dot / (lengths[0] * lengths[1]) + 1e-4 * variation).backward()
        x.grad.sign_()
        optimizer.step()
        decay.step()
        x.data.clamp_(0, 1)
    return x.detach()


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock seconds of a call, including the work of the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def observe(task: Task, x: Tensor, y: Tensor) -> Observation:
    """The observation of an undefended victim."""
    return Observation.of(task, NoDefense().protect(task, x, y))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=MODELS)
    parser.add_argument("--victims", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument(
        "--full",
        type=int,
        metavar="VICTIMS",
        help="also run 4,000 iterations on this many victims and compare the PSNR with the loop",
    )
    parser.add_argument(
        "--compared", type=int, default=3, help="number of victims on which the loop runs 4,000 iterations"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    sample = load_sample()
    rows: list[dict[str, object]] = []

    def record_row(**row: object) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    for name in options.models:
        torch.manual_seed(0)
        task = Task(make_model(name).to(device), example=sample.images[:1].to(device))
        index = torch.arange(max(*options.victims, options.full or 1)) % len(sample.images)
        x, y = sample.images[index, None].to(device), sample.labels[index, None].to(device)
        single_victim = observe(task, x[0], y[0])
        loop(task, single_victim, y[0], 5)
        steps = min(options.iterations, 50)
        loop_rate = steps / seconds(partial(loop, task, single_victim, y[0], steps))
        record_row(model=name, formulation="loop", victims=1, victim_iterations_a_second=round(loop_rate, 1))
        if find_spec("breaching"):
            breaching(task, single_victim, y[0], 5)
            breaching_rate = steps / seconds(partial(breaching, task, single_victim, y[0], steps))
            record_row(
                model=name,
                formulation="breaching",
                victims=1,
                victim_iterations_a_second=round(breaching_rate, 1),
            )
        for count in options.victims:
            observation = Observation.of(task, NoDefense().protect(task, x[:count], y[:count]))
            attack = InvertingGradients(iterations=options.iterations)
            InvertingGradients(iterations=3).reconstruct(observation)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            duration = seconds(partial(attack.reconstruct, observation))
            rate = count * options.iterations / duration
            peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
            record_row(
                model=name,
                formulation="batched",
                victims=count,
                victim_iterations_a_second=round(rate, 1),
                times_the_loop=round(rate / loop_rate, 1),
                peak_gib=peak and round(peak, 2),
            )
        if options.full:
            count, compared = options.full, options.compared
            observation = Observation.of(task, NoDefense().protect(task, x[:count], y[:count]))
            reconstruction = InvertingGradients().reconstruct(observation)
            references = {"loop": loop} | ({"breaching": breaching} if find_spec("breaching") else {})
            reference_psnr = {}
            for reference, call in references.items():
                reconstructions = [call(task, observe(task, x[i], y[i]), y[i], 4000) for i in range(compared)]
                reference_psnr[f"psnr_{reference}"] = round(
                    float(psnr(torch.cat(reconstructions), x[:compared, 0]).mean()), 2
                )
            record_row(
                model=name,
                formulation="batched, 4,000 iterations",
                victims=count,
                seconds=round(reconstruction.seconds, 2),
                victim_iterations_a_second=round(count * 4000 / reconstruction.seconds, 1),
                psnr_first=round(float(psnr(reconstruction.x[:compared, 0], x[:compared, 0]).mean()), 2),
                **reference_psnr,
            )
    if options.out:
        append_rows(options.out, rows, seed=0)


if __name__ == "__main__":
    main()
