"""What Refiner costs: time against the paper's bound ι(2·S1 + S2), and peak memory, at B = 128.

    python benchmarks/refine_cost.py [--models lenet vit] [--out cost.json]

On a GPU everything is replayed from CUDA graphs, at the same precision; on a CPU everything is eager.
Memory is what PyTorch allocated on a GPU; on a CPU it is resident memory, and only Linux tells.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from refiner.core import Task, flatten, gradients
from refiner.core.cuda_graphs import Captured
from refiner.core.precision import tensor_float32
from refiner.data import load_sample
from refiner.defenses import Refiner
from refiner.defenses.refine import craft
from refiner.defenses.refine.privacy import noise_share
from refiner.evaluation import EvaluationNetwork
from refiner.models import NAMES, build

PAPER_MS = {"lenet": 334, "resnet10": 1734, "resnet18": 2854, "resnet34": 4701, "vit": 30227}
CLEAR = Path("/proc/self/clear_refs")


def timed(call: Callable[[], object], device: str, at_least: float = 0.5) -> float:
    """Median milliseconds of a call, warmed up; one that takes a second or more is timed three times."""
    once(call, device)
    if once(call, device) > 1000:
        return sorted(once(call, device) for _ in range(3))[1]
    return timed_in_turn([call], device, at_least)[0]


def once(call: Callable[[], object], device: str) -> float:
    """Milliseconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def timed_in_turn(calls: list[Callable[[], object]], device: str, at_least: float = 0.5) -> list[float]:
    """Median milliseconds of each call, warmed up.

    Some of the one, then some of the other, and so on: a clock that changes changes them all, and a call
    finds in the caches what the same call before it left there, as in a training.
    """
    spent: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    while len(spent[0]) < 10 or (time.perf_counter() - began < at_least * len(calls) and len(spent[0]) < 50):
        for call, own in zip(calls, spent, strict=True):
            for _ in range(3):
                call()
            own += [once(call, device) for _ in range(5)]
    return [sorted(own)[len(own) // 2] for own in spent]


@dataclass(frozen=True)
class Case:
    """Clients' batches of bundled images, a model, and the plain parts that Refiner is made of."""

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
        task = Task(build(name).to(device), example=x[0, :2])
        return cls(task, x, y, ids, EvaluationNetwork.bundled(device))

    def plain(self, data: Tensor) -> tuple[Tensor]:
        """The gradient, as fast as it goes."""
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
            return torch.autograd.grad(noise_share(self.network, point, 0, 1).sum(), point)


def peak(call: Callable[[], object], device: str) -> float:
    """Peak MiB that one eager call takes beyond what is held already."""
    if device != "cuda":
        CLEAR.write_text("5")  # the peak starts anew from what is resident now
        before = resident("VmRSS")
        call()
        return resident("VmHWM") - before
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def resident(field: str) -> float:
    """MiB of this process that are resident ("VmRSS"), or the most that were ("VmHWM")."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def peaks(case: Case, device: str, cold: Refiner) -> dict[str, object]:
    """Refiner's peak memory, and its ratio to that of the plain parts together."""
    # Kernels are chosen in a first call; a new instance makes the second one eager too.
    for call in (
        lambda: Refiner().protect(case.task, case.x, case.y),
        lambda: case.plain(case.x),
        lambda: case.privacy(case.x),
    ):
        call()
    memory = peak(lambda: cold.protect(case.task, case.x, case.y, ids=case.ids), device)
    base = peak(lambda: case.plain(case.x), device) + peak(lambda: case.privacy(case.x), device)
    return {"peak_mib": round(memory, 1 if memory < 100 else None), "peak_ratio": round(memory / base, 2)}


def peaks_on_cpu(name: str, clients: int, batch: int) -> dict[str, object]:
    """The same of a process of its own; nothing where the resident memory or its peak can't be had."""
    try:
        CLEAR.write_text("5")
        resident("VmHWM")
    except (OSError, KeyError):
        return {}
    # Freed memory that the allocator keeps stays resident, and is no news when it is used again. So here it
    # goes back at once, with mimalloc (PyTorch's on ARM) as with glibc; what is timed would be slower so.
    at_once = {"MIMALLOC_PURGE_DELAY": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    with patch.dict(os.environ, at_once), ProcessPoolExecutor(1, get_context("spawn")) as apart:
        return apart.submit(_peaks_apart, name, clients, batch).result()


def _peaks_apart(name: str, clients: int, batch: int) -> dict[str, object]:
    return peaks(Case.of(name, "cpu", clients, batch), "cpu", Refiner())


@contextmanager
def search_in(precision: str) -> Iterator[None]:
    """Have Refiner search in full float32, or in what it finds fastest: TF32, bfloat16 for large ResNets."""
    before = craft.tensor_float32, craft.HEAVY
    if precision == "float32":
        craft.tensor_float32, craft.HEAVY = lambda allowed: tensor_float32(False), 2**62
    try:
        yield
    finally:
        craft.tensor_float32, craft.HEAVY = before


def measure(name: str, device: str, clients: int, batch: int) -> dict[str, object]:
    """One row: the plain parts, Refiner cold and warm, ratios and memory."""
    case = Case.of(name, device, clients, batch)
    task, x, y = case.task, case.x, case.y
    replay = Captured(capacity=8)
    row: dict[str, object] = {"model": name, "clients": clients, "batch": batch}
    for precision in ("float32", "fast"):
        with search_in(precision):
            robust, update = Refiner().refine(task, x, y, seed=0)
        real = case.exact(x)[0]
        sent = torch.cat([t.flatten(1) for t in update.tensors.values()], dim=1)
        distance = ((sent - real).norm(dim=1) / real.norm(dim=1)).mean()
        row[f"distance_{precision}"] = round(float(distance), 5)
        row[f"noise_{precision}"] = round(float(case.network.score(robust.flatten(0, 1)).mean()), 5)
    cold, warm = Refiner(), Refiner(warm_start=True)
    iterations = cold.iterations
    row |= peaks(case, device, cold) if device == "cuda" else peaks_on_cpu(name, clients, batch)
    s1 = timed(lambda: replay("plain", case.plain, [x]), device)
    exact_s1 = timed(lambda: replay("exact", case.exact, [x]), device)
    s2 = timed(lambda: replay("privacy", case.privacy, [x]), device)
    calls = [lambda defense=defense: defense.protect(task, x, y, ids=case.ids) for defense in (cold, warm)]
    c, w = timed_in_turn(calls, device, at_least=1)
    bound = iterations * (2 * s1 + s2)
    return row | {
        "s1_ms": round(s1, 3),
        "s1_full_float32_ms": round(exact_s1, 3),
        "s2_ms": round(s2, 3),
        "bound_ms": round(bound, 2),
        "refiner_ms": round(c, 2),
        "refiner_over_bound": round(c / bound, 2),
        "refiner_over_full_float32_bound": round(c / (iterations * (2 * exact_s1 + s2)), 2),
        "warm_ms": round(w, 2),
        "warm_over_cold": round(w / c, 3),
        "paper_a10_ms": PAPER_MS[name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    where = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(f"{where}, torch {torch.__version__}")
    rows = []
    cases = [(name, 1) for name in options.models] + [("lenet", 10)] * ("lenet" in options.models)
    for name, clients in cases:
        rows.append(measure(name, device, clients, options.batch))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(
            json.dumps({"device": where, "torch": torch.__version__, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
