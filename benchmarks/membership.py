"""Membership attacks on each defence: AUC, TPR at low FPR, and balanced accuracy, on real CIFAR-10.

    python benchmarks/membership.py --data FOLDER --out FOLDER [--attacks likelihood alignment …]
        [--defenses none refiner …] [--batches 8 16] [--clients 64] [--rounds 1] [--epochs 1]
        [--model lenet] [--weights FILE --state trained] [--roc]

Members and non-members are CIFAR-10 training images from 45,000 on, paired by class, without those on which
settings of the attacks were chosen (evaluation_splits.py); public images are 0 to 2,999. One row for each
combination in membership.jsonl, with the AUC of the same attack without a defence and that of the blind
baseline; docs/membership.md says what the columns mean. Rows of LiRA say how many shadow models were trained
and used in a minute. With `--roc` a row has points of its ROC curve too, which roc_plot.py draws.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from evaluation_splits import DEFAULT_SEED, FIRST_CANDIDATE, FIRST_VICTIM, unseen_candidates
from pixels import pixels
from refiner.audit import MembershipAudit, Protocol, Training, audit_membership, pair_by_label
from refiner.audit.roc_series import client_roc_series
from refiner.core import Task
from refiner.data import load_data
from refiner.errors import RefinerError
from refiner.inference import LiRA, make_membership_attack
from refiner.models import build_model
from refiner.models.model_weights import load_model_weights
from rows import append_rows

POOL, ROC_LEVELS = 3_000, 20
ATTACKS = ["alignment", "likelihood", "loss", "lira", "white-box"]
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
    "refiner-paper",
]


def summary(result: MembershipAudit, attack: str) -> dict[str, object]:
    """The figures of one audit, as columns of a row."""
    record = result.record()
    row: dict[str, object] = {"verdict": result.level}
    for name, title in (("auc", "AUC"), ("undefended_auc", "undefended AUC"), ("blind_auc", "blind AUC")):
        found = record[name]
        row[title] = None if found is None else round(found["value"], 4)
        row[f"{title} interval"] = None if found is None else [found["low"], found["high"]]
    accuracy = result.balanced_accuracy
    row["balanced accuracy"] = None if accuracy is None else round(accuracy.value, 4)
    for point in result.tpr:
        row[f"TPR at {100 * point.fpr:g} % FPR"] = round(point.value, 4)
        row[f"TPR at {100 * point.fpr:g} % FPR interval"] = [point.low, point.high]
    row["non-members"] = result.non_members.numel()
    row["seconds"] = round(result.seconds, 1)
    method = make_membership_attack(attack)
    # The control also scores the blind baseline, and takes twice as long.
    if isinstance(method, LiRA) and result.defense != "none":
        models = method.shadows * (result.clients if method.online else 1)
        row["shadow models a minute"] = round(60 * models / result.seconds)
    return row


def roc_points(result: MembershipAudit) -> list[list[float]]:
    """Points of the ROC curve with their intervals, `ROC_LEVELS` for each power of ten."""
    points = client_roc_series(result.defense, result.members, result.non_members).points
    last = {round(ROC_LEVELS * math.log10(max(1e-9, point[0]))): point for point in points}
    return [[round(value, 5) for value in point] for point in last.values()]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--defenses", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--state", default="initial", help="what to call the model's state")
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 16])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local-steps", type=int, default=1, help="of an epoch")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--public", type=int, default=POOL, help="public images")
    parser.add_argument("--roc", action="store_true", help="write points of the ROC curves too")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    options = parser.parse_args(argv)
    if options.public > FIRST_VICTIM:
        parser.error(f"--public {options.public}: at most {FIRST_VICTIM}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cifar10 = load_data("cifar10", "train", root=options.data)
    torch.manual_seed(options.seed)
    network = build_model(options.model, 10, (3, 32, 32))
    if options.weights is not None:
        load_model_weights(network, options.weights)
    candidates = unseen_candidates(cifar10.labels)
    images, labels = pixels(cifar10.images[candidates], device), cifar10.labels[candidates].to(device)
    public = pixels(cifar10.images[: options.public], device), cifar10.labels[: options.public].to(device)
    task = Task(network.to(device), example=public[0][:1])
    protocol = Protocol(options.local_steps, options.lr)
    training = Training(options.rounds, options.epochs, protocol)
    for batch in options.batches:
        x, others, y = pair_by_label(images, labels, options.clients, batch, seed=options.seed)
        for attack in options.attacks:
            control = None
            for defense in dict.fromkeys(["none", *options.defenses]):
                try:
                    result = audit_membership(
                        task, x, y, non_members=(others, y), public=public, defense=defense,
                        attack=attack, training=training, seed=options.seed, control=control,
                    )  # fmt: skip
                except RefinerError as error:
                    print(f"{attack} on {defense}, batches of {batch}: {error}", flush=True)
                    continue
                control = control or result
                row: dict[str, object] = {
                    "model": options.model,
                    "state": options.state,
                    "defense": defense,
                    "attack": attack,
                    "batch": batch,
                    "clients": options.clients,
                    "rounds": options.rounds,
                    "epochs": options.epochs,
                    "local steps": options.local_steps,
                    "lr": options.lr,
                    "public images": options.public,
                    "first candidate": FIRST_CANDIDATE,
                    **summary(result, attack),
                    "seed": options.seed,
                }
                print(json.dumps(row, ensure_ascii=False), flush=True)
                if options.roc:
                    row["ROC"] = roc_points(result)
                append_rows(options.out / "membership.jsonl", [row])


if __name__ == "__main__":
    main()
