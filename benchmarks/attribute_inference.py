"""Attribute inference: how well uploads of LFW's people reveal what is not the task, for each defence.

    python benchmarks/attribute_inference.py --out FOLDER [--data FOLDER] [--attribute gender] [--share]
        [--only none refiner …] [--unknown-defense] [--rounds 300]

The setting is that of `refiner audit --attack attribute`: docs/attributes.md. `recup:budget=…` is fitted to
the public people first. With --unknown-defense the attack model is trained on undefended uploads. With
--rounds each defence also trains the model, ten clients on four fifths of the public images, and is tested on
the others; RecUP keeps the classifiers of the untrained model. One row for each defence, in attributes.jsonl,
which docs/attributes.md shows.
"""

import argparse
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from refiner.attacks import ThreatModel
from refiner.audit import AttributeAudit, AttributeClients, audit_attribute, load_attribute_clients
from refiner.audit.seeds import VICTIMS
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.data import ImageDataset, hold_out, iid
from refiner.defenses import Defense, NoDefense, RecUP, make_defense
from refiner.federation import FederatedSettings
from refiner.federation.training import train
from refiner.inference import AttributeInference
from refiner.models import MODELS, make_model
from refiner.registry import parse_settings
from rows import append_rows

DEFENSES = [
    "none",
    "refiner",
    "refiner-paper",
    "soteria:rate=0.5,sensitivity=estimated",
    "soteria:rate=0.9,sensitivity=estimated",
    "recup:budget=0.01",
    "recup:budget=0.05",
    "recup:budget=0.05,aim=boundary",
    *(f"dp-gaussian:magnitude={magnitude},clip=none" for magnitude in ("1e-3", "1e-2", "1e-1")),
]
CLIENTS = 10


def defense_of(text: str, task: Task, people: AttributeClients, seed: int) -> Defense:
    """The defence; RecUP fitted to the public people."""
    name, settings = parse_settings("defense", text)
    if name != RecUP.name or "file" in settings:
        return make_defense(text)
    batch = people.x.shape[1]
    return RecUP.fit(task, *people.public, groups=people.groups[1], batch=batch, seed=seed, **settings)


def upload_error(task: Task, defense: Defense, people: AttributeClients, seed: int) -> float:
    """The mean distance of an upload from the real gradient, in units of that gradient's length."""
    device = next(task.model.parameters()).device
    x, y = people.x.to(device), people.y.to(device)
    sent, plain = (
        uploads(task, d, x, y, labels=False, seed=seed + VICTIMS)[1].gradient for d in (defense, NoDefense())
    )
    return float(((sent - plain).norm(dim=1) / plain.norm(dim=1).clamp_min(1e-12)).mean())


def accuracy(
    task: Task, defense: Defense, people: AttributeClients, rounds: int, lr: float, seed: int
) -> float:
    """The test accuracy after a federated training of a copy of the model on the public images."""
    images, labels, _ = people.public
    data = ImageDataset((images * 255).round().byte(), labels, people.classes, "public people", "all")
    training, test = hold_out(data)
    copied = Task(copy.deepcopy(task.model), example=people.x[0].to(next(task.model.parameters()).device))
    settings = FederatedSettings(rounds, CLIENTS, batch=32, lr=lr, seed=seed)
    parts = iid(training.labels, CLIENTS, seed=seed)
    return train(copied, training, test, parts, settings, defense, evaluate_every=rounds)[-1][1]


def scores(result: AttributeAudit) -> dict[str, object]:
    """The scores of an audit, as fields of a row."""
    found: dict[str, object] = {"verdict": result.level, "undefended": result.undefended.value}
    for name, interval in (("AUC", result.auc), ("R2", result.r2)):
        if interval is not None:
            found |= {name if key == "value" else f"{name} {key}": v for key, v in asdict(interval).items()}
    if result.balanced_accuracy is not None:
        found["balanced accuracy"] = result.balanced_accuracy.value
    else:
        found |= {"MAE": result.mae, "blind MAE": result.blind_mae}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder with LFW's files; the cache by default")
    parser.add_argument("--attribute", default="gender", choices=("gender", "person"))
    parser.add_argument("--share", action="store_true", help="mixed batches: the share of women")
    parser.add_argument("--only", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument(
        "--unknown-defense", action="store_true", help="the attacker does not know the defence"
    )
    parser.add_argument("--model", default="lenet", choices=MODELS)
    parser.add_argument("--clients", type=int, default=100, help="at most")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--least-images", type=int, help="of a person")
    parser.add_argument("--simulated", type=int, default=1000, help="clients to train the attack model on")
    parser.add_argument("--rounds", type=int, default=0, help="of the training that measures accuracy")
    parser.add_argument("--lr", type=float, default=0.05, help="of that training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    people = load_attribute_clients(
        "lfw",
        options.attribute,
        root=options.data,
        clients=options.clients,
        batch=options.batch,
        shares=options.share,
        least_images=options.least_images,
        seed=options.seed,
    )
    torch.manual_seed(options.seed)
    task = Task(make_model(options.model, classes=people.classes).to(device), example=people.x[0].to(device))
    control = None
    for text in options.only:
        start = time.perf_counter()
        defense = defense_of(text, task, people, options.seed)
        result = audit_attribute(
            task,
            people.x.to(device),
            people.y.to(device),
            people.attribute,
            public=people.public,
            groups=people.groups,
            defense=defense,
            attack=AttributeInference(clients=options.simulated),
            threat=ThreatModel(defense=not options.unknown_defense),
            seed=options.seed,
            control=control,
        )
        control = result if text == "none" else control
        row = {
            "model": options.model,
            "state": "initial",
            "attribute": "share of women" if options.share else options.attribute,
            "source": people.source,
            "defense": text,
            "attacker": "does not know the defence" if options.unknown_defense else "knows the defence",
            "batch": options.batch,
            "clients": result.clients,
            "simulated": options.simulated,
            **scores(result),
            "attack model": result.model,
            "upload error": upload_error(task, defense, people, options.seed),
            "seconds": round(time.perf_counter() - start, 1),
            "seed": options.seed,
        }
        if isinstance(defense, RecUP):
            row["accuracy of its classifiers"] = defense.zoo.accuracy
        if options.rounds:
            row |= {"rounds": options.rounds, "lr": options.lr}
            row["accuracy"] = accuracy(task, defense, people, options.rounds, options.lr, options.seed)
        print(json.dumps(row, ensure_ascii=False), flush=True)
        append_rows(options.out / "attributes.jsonl", [row])


if __name__ == "__main__":
    main()
