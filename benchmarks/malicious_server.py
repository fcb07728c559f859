"""Attacks of a server that changes the model, and exact inversion of batches, on each defence.

    python benchmarks/malicious_server.py --data FOLDER --out FOLDER [--attacks imprint loki …]
        [--defenses none refiner …] [--batches 1 16] [--victims 64] [--local-steps 1] [--summed-clients 1]

Victims are CIFAR-10 training images from 40,000 on. Settings of an attack are chosen for each defence on
images from 38,000 on, by the share that is singled out and then by PSNR, among those of SETTINGS; the truth
about victims is never used.
`ATTACK+denoiser` learns from images 0 to 2,999. The mean PSNR stands beside that of a blind guess, and top-1
is the share of images that their reconstruction singles out among all victims. One row for each combination
in malicious.jsonl, which docs/results/malicious.md shows.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixels import pixels
from refiner.attacks import ThreatModel, make_attack
from refiner.audit import Protocol, audit
from refiner.core import Task
from refiner.data import load_data
from refiner.errors import ProtectionError, RefinerError
from refiner.metrics import blind_guess
from refiner.models import build_model
from refiner.models.model_weights import load_model_weights
from rows import append_rows

FIRST_VICTIM, FIRST_TUNING, POOL = 40_000, 38_000, 3_000
# Behind Refiner's noise brightness varies three times as much; noise on gradients asks for large ones. A
# denoiser may read pixels beyond 0..1, an audit of the readings themselves may not.
BINS = [f"std={std},scale={scale:g}" for std in (0.125, 0.4) for scale in (1.0, 1e3)]
WIDE = ["std=0.4,input_range=(-6,7)"]
SETTINGS = {
    "imprint": BINS,
    "imprint+denoiser": WIDE,
    "loki": [f"std={std},tap={tap:g}" for std in (0.125, 0.4) for tap in (500, 5e4)],
    "loki+denoiser": WIDE,
    "trap-weights": ["factor=0.95", "factor=0.97"],
    "trap-weights+denoiser": ["factor=0.95,input_range=(-6,7)"],
    "spear": [""],
    "analytic": [""],
}
DEFENSES = [
    "none",
    "dp-gaussian:magnitude=1e-3,clip=1",
    "dp-gaussian:magnitude=1e-2,clip=1",
    "dp-gaussian:magnitude=1e-1,clip=none",
    "pruning:rate=0.99",
    "gq:bits=8",
    "soteria:rate=0.5",
    "refiner",
    "refiner:search=never",
    "refiner:start=centred,alpha=2.2",
    "refiner-paper",
]
Images = tuple[Tensor, Tensor]


def attack_text(attack: str, settings: str, clients: int) -> str:
    """The attack with its settings, as `make_attack` reads them."""
    name, *stages = attack.split("+")
    if name == "loki":
        settings = f"clients={clients},{settings}"
    return "+".join([f"{name}:{settings}" if settings else name, *stages])


def attacked(
    task: Task, defense: str, attack: str, images: Images, pool: Images, protocol: Protocol
) -> dict[str, float]:
    """The mean PSNR and top-1 of an attack."""
    result = audit(
        task,
        *images,
        defense=defense,
        attack=make_attack(attack),
        threat=ThreatModel(changed_model=True),
        metrics=["identification"],
        pool=pool,
        protocol=protocol,
        control=False,
    )
    return {
        "PSNR": result.means["psnr"].value,
        "top-1": result.means["top1_pixels"].value,
        "objective": sum(result.objective) / len(result.objective),
    }


def tuning_score(*arguments: Any) -> tuple[float, float]:
    """Top-1 and the mean PSNR of an attack; the lowest if it makes the clients refuse."""
    try:
        scores = attacked(*arguments)
    except ProtectionError:
        return -math.inf, -math.inf
    return scores["top-1"], scores["PSNR"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attacks", nargs="+", default=["imprint", "loki", "trap-weights"], choices=SETTINGS)
    parser.add_argument("--defenses", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--state", default="initial", help="what to call the model's state")
    parser.add_argument("--batches", nargs="+", type=int, default=[16])
    parser.add_argument("--victims", type=int, default=64, help="images")
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--summed-clients", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    protocol = Protocol(options.local_steps, summed_clients=options.summed_clients)
    torch.manual_seed(options.seed)
    network = build_model(options.model, 10, (3, 32, 32))
    if options.weights is not None:
        load_model_weights(network, options.weights)
    pool = pixels(cifar10.images[:POOL], device), cifar10.labels[:POOL].to(device)

    def clients(first: int, count: int, batch: int) -> Images:
        if first == FIRST_TUNING and first + count * batch > FIRST_VICTIM:
            parser.error(f"--summed-clients {options.summed_clients}: too many images to tune on")
        rows = slice(first, first + count * batch)
        x = pixels(cifar10.images[rows], device)
        return x.view(count, batch, *x.shape[1:]), cifar10.labels[rows].to(device).view(count, batch)

    task = Task(network.to(device), example=pool[0][:1])
    for batch in options.batches:
        victims = clients(FIRST_VICTIM, options.victims // batch, batch)
        tuning = clients(FIRST_TUNING, max(options.summed_clients, 16 // batch, 1), batch)
        blind = blind_guess(victims[0].flatten(0, 1), pool[0]).scores
        for defense in options.defenses:
            for attack in options.attacks:
                began = time.perf_counter()
                texts = [attack_text(attack, s, options.summed_clients) for s in SETTINGS[attack]]
                try:
                    best = max(
                        texts if len(texts) > 1 else [],
                        key=lambda text: tuning_score(task, defense, text, tuning, pool, protocol),
                        default=texts[0],
                    )
                    scores = attacked(task, defense, best, victims, pool, protocol)
                except RefinerError as error:
                    print(f"{attack} on {defense}, batches of {batch}: {error}", flush=True)
                    continue
                row = {
                    "model": options.model,
                    "state": options.state,
                    "defense": defense,
                    "attack": attack,
                    "chosen": best,
                    "batch": batch,
                    "victims": options.victims,
                    "local steps": options.local_steps,
                    "summed clients": options.summed_clients,
                    **scores,
                    "mean image": float(blind["mean image"].mean()),
                    "own mean colour": float(blind["own colour"].mean()),
                    "seed": options.seed,
                    "seconds": round(time.perf_counter() - began, 1),
                }
                print(json.dumps(row, ensure_ascii=False), flush=True)
                append_rows(options.out / "malicious.jsonl", [row])


if __name__ == "__main__":
    main()
