"""Attacks that solve for single images instead of matching gradients, on the models that they fit.

    python benchmarks/exact_inversion.py --data FOLDER --out FOLDER --model vit --attacks april
        [--steps 0 100] [--training-batch 16] [--training-lr 1e-4] [--defenses none refiner …] [--victims 8]
        [--save]

Victims are CIFAR-10 training images from 41,000 on, B = 1; the attacks were developed on earlier ones. Each
state is the model after so many steps of AdamW on batches of images below 40,000; "training loss" is the
mean over the last ten of them, and accuracy is that on the test images. Attacks are granted labels and
batch-norm statistics. Top-1: an original is the closest of all victims to its reconstruction. One row for
each state, attack and defence in exact.jsonl, which docs/results/exact.md shows.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from pixels import client_batches, pixels
from refiner.attacks import ThreatModel, make_attack
from refiner.audit import audit
from refiner.core import Task
from refiner.data import ImageDataset, load_data
from refiner.federation import accuracy
from refiner.metrics import blind_guess
from refiner.models import build_model
from rows import append_rows

DEFENSES = [
    "none",
    "dp-gaussian:magnitude=1e-3,clip=none",
    "dp-gaussian:magnitude=1e-3,clip=1",
    "pruning:rate=0.99",
    "gq:bits=8",
    "refiner",
]
PUBLIC, FIRST_VICTIM, LOSSES = 40_000, 41_000, 10
GRANTED = ThreatModel(labels=True, statistics=True)


def train(
    model: nn.Module, cifar10: ImageDataset, steps: int, batch: int, lr: float, device: str, seed: int
) -> float:
    """Train the model in place, and return the mean loss of the last steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    draws = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(steps):
        rows = torch.randint(PUBLIC, (batch,), generator=draws)
        loss = F.cross_entropy(model(pixels(cifar10.images[rows], device)), cifar10.labels[rows].to(device))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses = [*losses, loss.item()][-LOSSES:]
        if not (step + 1) % (10 * LOSSES):
            print(f"{step + 1} steps, loss {sum(losses) / len(losses):.2f}", flush=True)
    return sum(losses) / len(losses)


def attacked(task: Task, defense: str, attack: str, x: Tensor, y: Tensor, seed: int) -> dict[str, object]:
    """The scores of an attack on uploads."""
    began = time.perf_counter()
    result = audit(
        task,
        x,
        y,
        defense=defense,
        attack=make_attack(attack),
        threat=GRANTED,
        metrics=["identification"],
        seed=seed,
        control=False,
    )
    return {
        "PSNR": result.means["psnr"].value,
        "SSIM": result.means["ssim"].value,
        "top-1": result.means["top1_pixels"].value,
        "attack seconds": round(result.seconds.attack, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="vit", metavar="NAME:SETTING=VALUE")
    parser.add_argument("--attacks", nargs="+", default=["april"], metavar="NAME:SETTING=VALUE")
    parser.add_argument("--defenses", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--steps", nargs="+", type=int, default=[0])
    parser.add_argument("--training-batch", type=int, default=16)
    parser.add_argument("--training-lr", type=float, default=1e-4)
    parser.add_argument("--victims", type=int, default=8)
    parser.add_argument("--save", action="store_true", help="the weights of trained states, to --out")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10, test = (load_data("cifar10", part, root=options.data) for part in ("train", "test"))
    x, y = client_batches(cifar10, options.victims, 1, device, FIRST_VICTIM)
    blind = blind_guess(x.flatten(0, 1), pixels(cifar10.images[:1000], device)).scores["own colour"]
    for steps in options.steps:
        torch.manual_seed(options.seed)
        model = build_model(options.model, 10, (3, 32, 32)).to(device)
        task = Task(model, example=x[0])
        state: dict[str, object] = {"model": options.model, "steps": steps}
        if steps:
            batch, lr = options.training_batch, options.training_lr
            loss = train(model, cifar10, steps, batch, lr, device, options.seed)
            state |= {"training loss": loss, "accuracy": accuracy(task, test)}
            if options.save:
                options.out.mkdir(parents=True, exist_ok=True)
                save_file(model.state_dict(), options.out / f"{steps}.safetensors")
        for attack, defense in product(options.attacks, options.defenses):
            row = {
                **state,
                "attack": attack,
                "defense": defense,
                "victims": options.victims,
                **attacked(task, defense, attack, x, y, options.seed),
                "own mean colour": float(blind.mean()),
                "seed": options.seed,
            }
            print(json.dumps(row, ensure_ascii=False), flush=True)
            append_rows(options.out / "exact.jsonl", [row])


if __name__ == "__main__":
    main()
