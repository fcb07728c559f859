"""Cost of Refiner: time relative to the paper's bound ι(2·S1 + S2), and peak memory, at B = 128.

    python benchmarks/refine_cost.py [--models lenet vit] [--out cost.jsonl]

S1 is the time of a plain gradient, S2 that of the evaluation network's gradient. On a GPU everything is
replayed from CUDA graphs at the same precision; on a CPU everything is eager. Memory is what PyTorch
allocated on a GPU, and resident memory on a CPU, where only Linux reports it. Feeds
docs/results/cost.jsonl, which docs/results/cost.md shows.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from refiner.core import Task, flatten, gradients
from refiner.core.cuda_graphs import CudaGraphCache
from refiner.core.precision import tensor_float32
from refiner.data import load_sample
from refiner.defenses import Refiner
from refiner.defenses.refine import craft
from refiner.defenses.refine.privacy import noise_ratio
from refiner.evaluation import EvaluationNetwork
from refiner.models import MODELS, make_model
from rows import append_rows

# The default: the sum of error feedback takes no time beside a search, and needs a state.
COLD = Refiner(error_feedback=False)
WARM = Refiner(start="centred", alpha=2.2, search="always", error_feedback=False, warm_start=True)
PAPER_MS = {"lenet": 334, "resnet10": 1734, "resnet18": 2854, "resnet34": 4701, "vit": 30227}
CLEAR_REFS = Path("/proc/self/clear_refs")


def median_ms(call: Callable[[], object], device: str, min_seconds: float = 0.5) -> float:
    """Median milliseconds of a call after a warm-up; three runs if it takes a second or more."""
    call_ms(call, device)
    if call_ms(call, device) > 1000:
        return sorted(call_ms(call, device) for _ in range(3))[1]
    return median_ms_interleaved([call], device, min_seconds)[0]


def call_ms(call: Callable[[], object], device: str) -> float:
    """Milliseconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def median_ms_interleaved(
    calls: list[Callable[[], object]], device: str, min_seconds: float = 0.5
) -> list[float]:
    """Median milliseconds of each call after a warm-up.

    The calls take turns in groups, so that a change of the clock rate affects all of them and each call still
    finds its own data in the caches, as in a training.
    """
    durations: list[list[float]] = [[] for _ in calls]
    start_time = time.perf_counter()
    while len(durations[0]) < 10 or (
        time.perf_counter() - start_time < min_seconds * len(calls) and len(durations[0]) < 50
    ):
        for call, times in zip(calls, durations, strict=True):
            for _ in range(3):
                call()
            times += [call_ms(call, device) for _ in range(5)]
    return [sorted(times)[len(times) // 2] for times in durations]


@dataclass(frozen=True)
class Case:
    """Clients' batches of bundled images, a model, and the computations that the bound is made of."""

    task: Task
    x: Tensor
    y: Tensor
    ids: Tensor
    network: EvaluationNetwork

    @classmethod
    def of(cls, name: str, device: str, clients: int, batch: int) -> "Case":
        """The same images and weights every time."""
        torch.manual_seed(0)
        sample = load_sample()
        index = torch.randint(200, (clients, batch))
        x, y = sample.images[index].to(device), sample.labels[index].to(device)
        ids = torch.arange(clients * batch, device=device).view(clients, batch)
        task = Task(make_model(name).to(device), example=x[0, :2])
        return cls(task, x, y, ids, EvaluationNetwork.bundled(device))

    def fresh_task(self) -> Task:
        """The same task without recorded CUDA graphs."""
        return Task(self.task.model, example=self.x[0, :2])

    def plain(self, data: Tensor) -> tuple[Tensor]:
        """The gradient in the fastest precision, TF32 where there is one."""
        with tensor_float32(True):
            return (flatten(gradients(self.task, data, self.y)),)

    def exact(self, data: Tensor) -> tuple[Tensor]:
        """The gradient in full float32."""
        with tensor_float32(False):
            return (flatten(gradients(self.task, data, self.y)),)

    def privacy(self, data: Tensor) -> tuple[Tensor]:
        """The gradient of D with respect to the images."""
        with torch.enable_grad(), tensor_float32(True):
            point = data.detach().requires_grad_()
            return torch.autograd.grad(noise_ratio(self.network, point, 0, 1).sum(), point)


def peak_mib(call: Callable[[], object], device: str) -> float:
    """Peak MiB that one eager call allocates in addition to what is allocated already."""
    if device != "cuda":
        CLEAR_REFS.write_text("5")  # resets the peak to what is resident
        before = memory_mib("VmRSS")
        call()
        return memory_mib("VmHWM") - before
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def memory_mib(field: str) -> float:
    """Resident memory of this process ("VmRSS") or its peak ("VmHWM"), in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def memory_row(case: Case, device: str, cold: Refiner) -> dict[str, object]:
    """Peak memory of Refiner, and its ratio to that of a plain gradient and the evaluation network."""
    # Kernels are chosen in a first call; on a new task the second one is not replayed from a CUDA graph.
    for call in (
        lambda: cold.protect(case.fresh_task(), case.x, case.y),
        lambda: case.plain(case.x),
        lambda: case.privacy(case.x),
    ):
        call()
    task = case.fresh_task()
    memory = peak_mib(lambda: cold.protect(task, case.x, case.y, ids=case.ids), device)
    base = peak_mib(lambda: case.plain(case.x), device) + peak_mib(lambda: case.privacy(case.x), device)
    return {"peak_mib": round(memory, 1 if memory < 100 else None), "peak_ratio": round(memory / base, 2)}


def memory_row_on_cpu(name: str, clients: int, batch: int) -> dict[str, object]:
    """Peak memory measured in a subprocess; empty where the system does not report resident memory."""
    try:
        CLEAR_REFS.write_text("5")
        memory_mib("VmHWM")
    except (OSError, KeyError):
        return {}
    # Freed memory that the allocator keeps stays resident and would not count when it is used again. So it is
    # returned at once, by mimalloc (PyTorch's on ARM) and glibc. That is slow, so timed calls run without it.
    release_memory = {
        "MIMALLOC_PURGE_DELAY": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "0",
    }
    with patch.dict(os.environ, release_memory), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_memory_row_in_subprocess, name, clients, batch).result()


def _memory_row_in_subprocess(name: str, clients: int, batch: int) -> dict[str, object]:
    return memory_row(Case.of(name, "cpu", clients, batch), "cpu", COLD)


@contextmanager
def search_precision(precision: str) -> Iterator[None]:
    """Let Refiner search in float32, or in its fastest precision: TF32, bfloat16 for large ResNets."""
    before = craft.tensor_float32, craft.BFLOAT16_MIN_CONV_WEIGHTS
    if precision == "float32":
        craft.tensor_float32, craft.BFLOAT16_MIN_CONV_WEIGHTS = lambda allowed: tensor_float32(False), 2**62
    try:
        yield
    finally:
        craft.tensor_float32, craft.BFLOAT16_MIN_CONV_WEIGHTS = before


def measure(name: str, device: str, clients: int, batch: int) -> dict[str, object]:
    """One row: plain gradients, Refiner without and with a warm start, ratios and memory."""
    case = Case.of(name, device, clients, batch)
    task, x, y = case.task, case.x, case.y
    replay = CudaGraphCache(capacity=8)
    row: dict[str, object] = {"model": name, "clients": clients, "batch": batch}
    for precision in ("float32", "fast"):
        with search_precision(precision):
            # A new task each time: it caches CUDA graphs, which keep the precision they were recorded in.
            result = COLD.protection(case.fresh_task(), x, y, seed=0)
        assert result.robust is not None
        robust, update = result.robust, result.update
        real = case.exact(x)[0]
        sent = torch.cat([t.flatten(1) for t in update.tensors.values()], dim=1)
        distance = ((sent - real).norm(dim=1) / real.norm(dim=1)).mean()
        row[f"distance_{precision}"] = round(float(distance), 5)
        row[f"noise_{precision}"] = round(float(case.network.score(robust.flatten(0, 1)).mean()), 5)
    iterations, state = COLD.iterations, WARM.init_state()
    row |= memory_row(case, device, COLD) if device == "cuda" else memory_row_on_cpu(name, clients, batch)
    s1 = median_ms(lambda: replay("plain", case.plain, [x]), device)
    exact_s1 = median_ms(lambda: replay("exact", case.exact, [x]), device)
    s2 = median_ms(lambda: replay("privacy", case.privacy, [x]), device)
    calls = [
        lambda: COLD.protect(task, x, y, ids=case.ids),
        lambda: WARM.protect(task, x, y, ids=case.ids, state=state),
    ]
    cold_ms, warm_ms = median_ms_interleaved(calls, device, min_seconds=1)
    bound = iterations * 2 * s1
    return row | {
        "s1_ms": round(s1, 3),
        "s1_full_float32_ms": round(exact_s1, 3),
        "s2_ms": round(s2, 3),
        "bound_ms": round(bound, 2),
        "refiner_ms": round(cold_ms, 2),
        "refiner_over_bound": round(cold_ms / bound, 2),
        "refiner_over_full_float32_bound": round(cold_ms / (iterations * 2 * exact_s1), 2),
        "warm_ms": round(warm_ms, 2),
        "warm_over_cold": round(warm_ms / cold_ms, 3),
        "paper_a10_ms": PAPER_MS[name],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    device_name = (
        torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    )
    print(f"{device_name}, torch {torch.__version__}")
    rows = []
    cases = [(name, 1) for name in options.models] + [("lenet", 10)] * ("lenet" in options.models)
    for name, clients in cases:
        rows.append(measure(name, device, clients, options.batch))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        append_rows(options.out, rows, seed=0)


if __name__ == "__main__":
    main()
