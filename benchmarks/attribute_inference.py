"""Attribute inference: how well uploads of LFW's people reveal what is not the task, for each defence.

    python benchmarks/attribute_inference.py --out FOLDER [--data FOLDER] [--attribute gender] [--share]
        [--only none refiner …] [--unknown-defense] [--rounds 300]

The setting is that of `refiner audit --attack attribute`: docs/attributes.md. Clients and public people of
gender have two to four images each, since settings of the attack were chosen on people with more.
`recup:budget=…` is fitted to the public people first. With --unknown-defense the attack model is trained on
undefended uploads. With --rounds each defence also trains the model, ten clients with the people who have 20
images or more, or for person with everybody's gender; RecUP keeps the classifiers of the untrained model. One
row for each defence, in attributes.jsonl, which docs/attributes.md shows.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from evaluation_splits import DEFAULT_SEED, UNSEEN_PEOPLE
from inference_training import defense_of, federated_accuracy, training_data
from refiner.attacks import ThreatModel
from refiner.audit import AttributeAudit, AttributeClients, audit_attribute, load_attribute_clients
from refiner.audit.seeds import VICTIMS
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.defenses import Defense, NoDefense, RecUP
from refiner.inference import AttributeInference
from refiner.models import MODELS, make_model
from rows import append_rows

DEFENSES = [
    "none",
    "refiner",
    "refiner-paper",
    "refiner:search=never",
    "pruning:rate=0.99",
    "soteria:rate=0.5,sensitivity=estimated",
    "soteria:rate=0.9,sensitivity=estimated",
    "recup:budget=0.01",
    "recup:budget=0.05",
    "recup:budget=0.05,aim=boundary",
    *(f"dp-gaussian:magnitude={magnitude},clip=none" for magnitude in ("1e-3", "1e-2", "1e-1")),
]


def upload_error(task: Task, defense: Defense, people: AttributeClients, seed: int) -> float:
    """The mean distance of an upload from the real gradient, in units of that gradient's length."""
    device = next(task.model.parameters()).device
    x, y = people.x.to(device), people.y.to(device)
    sent, plain = (
        uploads(task, d, x, y, labels=False, seed=seed + VICTIMS)[1].gradient for d in (defense, NoDefense())
    )
    return float(((sent - plain).norm(dim=1) / plain.norm(dim=1).clamp_min(1e-12)).mean())


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
    parser.add_argument("--least-images", type=int, help="of a person; 2 for gender, --batch for person")
    parser.add_argument("--most-images", type=int, help="of a person; 4 for gender")
    parser.add_argument("--simulated", type=int, default=1000, help="clients to train the attack model on")
    parser.add_argument("--rounds", type=int, default=0, help="of the training that measures accuracy")
    parser.add_argument("--lr", type=float, default=0.2, help="of that training")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    limits = {"least_images": options.least_images, "most_images": options.most_images}
    if options.attribute == "gender" and set(limits.values()) == {None}:
        limits = UNSEEN_PEOPLE
    people = load_attribute_clients(
        "lfw",
        options.attribute,
        root=options.data,
        clients=options.clients,
        batch=options.batch,
        shares=options.share,
        seed=options.seed,
        **limits,
    )
    labelled = (*people.public, people.groups[1])
    trained = "lfw-identity" if options.attribute == "gender" else "lfw-gender"
    data = training_data(trained, options.data) if options.rounds else None
    torch.manual_seed(options.seed)
    task = Task(make_model(options.model, classes=people.classes).to(device), example=people.x[0].to(device))
    control = None
    for text in options.only:
        start = time.perf_counter()
        defense = defense_of(text, task, labelled, options.batch, options.seed)
        assert defense is not None
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
            "least images": limits["least_images"],
            "most images": limits["most_images"],
            "seconds": round(time.perf_counter() - start, 1),
            "seed": options.seed,
        }
        if isinstance(defense, RecUP):
            row["accuracy of its classifiers"] = defense.zoo.accuracy
        if data is not None:
            row |= {"rounds": options.rounds, "lr": options.lr, "trained on": trained}
            row["accuracy"] = federated_accuracy(
                data, options.model, text, batch=options.batch, rounds=options.rounds, lr=options.lr,
                seed=options.seed, device=device,
            )  # fmt: skip
        print(json.dumps(row, ensure_ascii=False), flush=True)
        append_rows(options.out / "attributes.jsonl", [row])


if __name__ == "__main__":
    main()
