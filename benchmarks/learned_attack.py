"""Attackers who learn: PSNR and top-1 of each attack on each defence, at several states of the model.

    python benchmarks/learned_attack.py --data FOLDER --out FOLDER [--defenses none refiner …]
        [--states initial NAME=WEIGHTS.safetensors …] [--attacks inverting linear learned from-robust]

Victims are CIFAR-10 training images from 40,000 on; the attacker's pool, on which `inverting` is tuned too,
is images 0 to 39,999. The defence and its settings are known, its secret is not. `from-robust` is no attack
on uploads: a network estimates images from the exact robust data, beside the best linear filter and a
likelihood match among known candidates. Top-1: of all victims, an original is the closest to its own
reconstruction, by `metrics.identify`. One row for each combination, in learned.jsonl, which
docs/results/learned.md and batches.md show. "noise ratio" is what the evaluation network D says of
reconstructions.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pixels import pixels
from refiner.attacks import ThreatModel, make_attack, tunable
from refiner.audit import Tuning, audit
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.from_robust import RobustEstimation, estimate_from_robust
from refiner.audit.seeds import VICTIMS
from refiner.audit.uploads import simulator, uploads
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import NoDefense, make_defense
from refiner.metrics import blind_guess, identify
from refiner.models import MODELS, make_model
from refiner.models.model_weights import load_model_weights
from rows import append_rows

FIRST_VICTIM, FIRST_TUNING, POOL = 40_000, 39_000, 40_000
FROM_ROBUST = "from-robust"
Images = tuple[Tensor, Tensor]


def relative_error(task: Task, defense: str, x: Tensor, y: Tensor, seed: int) -> float:
    """The mean distance of an upload from the real gradient, in units of that gradient's length."""
    protected, plain = (
        uploads(task, d, x, y, labels=False, seed=seed + VICTIMS)[1].gradient
        for d in (make_defense(defense), NoDefense())
    )
    return float(((protected - plain).norm(dim=1) / plain.norm(dim=1).clamp_min(1e-12)).mean())


def attacked(
    task: Task, defense: str, name: str, victims: Images, pool: Images, tuning: Images | None, seed: int
) -> dict[str, object]:
    """The scores of an attack on uploads."""
    attack = make_attack(name)
    tune = Tuning(*tuning) if tuning is not None and tunable(attack) else None
    result = audit(
        task,
        *victims,
        defense=defense,
        attack=attack,
        threat=ThreatModel(generator="generator" in attack.needs),
        metrics=["identification", "noise"],
        pool=pool,
        seed=seed,
        tune=tune,
        control=False,
    )
    psnr = result.means["psnr"]
    # The audit adds public images to its candidates; here the victims alone are candidates.
    found, originals = (
        torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255)
        for images in (result.reconstruction, result.original)
    )
    identified = identify(found, originals)
    return {
        "PSNR": psnr.value,
        "±": None if psnr.low is None or psnr.high is None else (psnr.high - psnr.low) / 2,
        "top-1": identified.top1,
        "candidates": identified.candidates,
        "noise ratio": result.means["noise"].value if "noise" in result.means else None,
        "diverged": sum(result.diverged),
        "tuned": None if result.tuned is None else dict(result.tuned.chosen),
        "seconds": round(result.seconds.attack + result.seconds.tuning, 1),
    }


def estimated(
    task: Task, defense: str, victims: Images, pool: Images, settings: RobustEstimation, seed: int
) -> dict[str, object] | None:
    """The scores of estimates from the exact robust data; None if the defence makes none."""
    start = time.perf_counter()
    defender, (x, y) = make_defense(defense), victims
    robust, observation = uploads(task, defender, x, y, labels=False, seed=seed + VICTIMS)
    simulate = simulator(task, defender, AttackerImages(*pool, "CIFAR-10"))
    if robust is None or simulate is None:
        return None
    reached = estimate_from_robust(simulate, observation, robust, x, y, settings=settings, seed=seed)
    return {
        "PSNR": reached.psnr,
        "top-1": reached.top1,
        "candidates": victims[1].numel(),
        "Wiener PSNR": reached.wiener_psnr,
        "likelihood top-1": reached.likelihood_top1,
        "likelihood top-1, one upload": reached.likelihood_top1_uploads,
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defenses", nargs="+", default=["none", "refiner"], metavar="NAME:SETTING=VALUE")
    parser.add_argument("--states", nargs="+", default=["initial"], metavar="NAME=FILE")
    parser.add_argument("--attacks", nargs="+", default=["inverting", "linear", "learned", FROM_ROBUST])
    parser.add_argument("--model", default="lenet", choices=MODELS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--victims", type=int, default=1000, help="images, in batches of --batch")
    parser.add_argument("--pool", type=int, default=POOL, help="public images, at most 40,000")
    parser.add_argument("--tuning", type=int, default=8, help="clients to tune on; 0 for no tuning")
    parser.add_argument("--epochs", type=int, help="of the network from robust data")
    parser.add_argument("--width", type=int, help="of the network from robust data")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.pool > POOL:
        parser.error(f"--pool {options.pool}: images from {POOL} on are victims")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    cifar10 = load_data("cifar10", "train", root=options.data)

    def clients(first: int, count: int, batch: int) -> Images:
        rows = slice(first, first + count * batch)
        x = pixels(cifar10.images[rows], device)
        return x.view(count, batch, *x.shape[1:]), cifar10.labels[rows].to(device).view(count, batch)

    victims = clients(FIRST_VICTIM, options.victims // options.batch, options.batch)
    tuning = clients(FIRST_TUNING, options.tuning, options.batch) if options.tuning else None
    pool = pixels(cifar10.images[: options.pool], device), cifar10.labels[: options.pool].to(device)
    blind = blind_guess(victims[0].flatten(0, 1), pool[0]).scores
    changes = {key: value for key in ("epochs", "width") if (value := getattr(options, key))}
    for state in options.states:
        name, _, file = state.partition("=")
        torch.manual_seed(options.seed)
        network = make_model(options.model)
        if file:
            load_model_weights(network, Path(file))
        task = Task(network.to(device), example=victims[0][0])
        for defense in options.defenses:
            error = relative_error(task, defense, *victims, options.seed)
            for attack in options.attacks:
                if attack == FROM_ROBUST:
                    scores = estimated(
                        task, defense, victims, pool, RobustEstimation(**changes), options.seed
                    )
                else:
                    scores = attacked(task, defense, attack, victims, pool, tuning, options.seed)
                if scores is None:
                    continue
                row = {
                    "model": options.model,
                    "state": name,
                    "defense": defense,
                    "attack": attack,
                    "batch": options.batch,
                    "victims": len(victims[0]),
                    "pool": options.pool,
                    "upload error": error,
                    **scores,
                    "mean image": float(blind["mean image"].mean()),
                    "own mean colour": float(blind["own colour"].mean()),
                    "seed": options.seed,
                }
                print(json.dumps(row, ensure_ascii=False), flush=True)
                append_rows(options.out / "learned.jsonl", [row])


if __name__ == "__main__":
    main()
