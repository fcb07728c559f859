"""What inference attacks find against the accuracy that a defence keeps, over the strengths of defences.

    python benchmarks/inference_comparison.py --data FOLDER --out FOLDER [--model lenet resnet10]
        [--question membership membership-lfw gender person] [--seeds 1 2 3] [--defenses none refiner …]
        [--membership-attacks likelihood …] [--clients 100] [--simulated 600] [--steps 0] [--rounds 1000]
        [--training-seeds 1]

Questions: who was in a client's data, of CIFAR-10 (`membership`) and of LFW; and which gender or person a
client of LFW has. Every seed has other clients and other initial weights; the attacker knows the defence.
Clients are on none of the splits on which settings of the attacks were chosen: docs/membership.md and
docs/attributes.md. Accuracy is that of a federated training of the same model with the same batches
(`inference_training.py`), for the seeds of --training-seeds. RecUP hides gender, or the person if that is
asked for, and is left out for CIFAR-10, which has no attribute.

Rows are appended to inference.jsonl, one for each question, model, seed and defence, with the AUC and its
interval; accuracies to inference-training.jsonl. A row that is there already is not measured again, so that
the same command continues. `inference_plot.py` draws both.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evaluation_splits import DEFAULT_SEED, FIRST_VICTIM
from inference_questions import BATCHES, TRAINED_ON, ask, default_attack, figures
from inference_training import defense_of, federated_accuracy, training_data
from refiner.errors import RefinerError
from refiner.models import MODELS
from rows import append_rows

DEFENSES = [
    "none",
    *(f"refiner:white=0,alpha={alpha}" for alpha in ("1.5", "3", "6")),
    "refiner:white=0,search=always,alpha=3",
    *(f"refiner:white=0,search=never,alpha={alpha}" for alpha in ("0.5", "1", "3")),
    *(f"refiner-paper:epsilon={epsilon}" for epsilon in ("0.05", "0.1", "0.3")),
    *(f"soteria:rate={rate},sensitivity=estimated" for rate in ("0.3", "0.6", "0.9")),
    *(f"recup:budget={budget}" for budget in ("0.01", "0.05", "0.2")),
    *(f"dp-gaussian:magnitude={magnitude},clip=none" for magnitude in ("1e-3", "1e-2", "1e-1")),
]
# At 0.2 some trainings of LeNet diverge, one of them undefended.
LEARNING_RATES = {"lenet": 0.1, "resnet10": 0.05}
# RecUP's attribute classifiers need one to classify.
_WITHOUT_ATTRIBUTE = ("cifar10",)


class Rows:
    """The rows of a file, by the settings they were measured with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def has(self, settings: Mapping[str, object]) -> bool:
        """Whether a row was measured with these settings."""
        return any(all(row.get(key) == value for key, value in settings.items()) for row in self.rows)

    def add(self, row: dict[str, object]) -> None:
        """Append a row, and print it."""
        print(json.dumps(row, ensure_ascii=False), flush=True)
        append_rows(self.path, [row])
        self.rows.append(row)


def attack_all(
    rows: Rows, question: str, model: str, seed: int, attack: str, options: argparse.Namespace, device: str
) -> None:
    """Attack every defence that has no row yet; the undefended uploads first, as the control."""

    state = f"after {options.steps} steps" if options.steps else "initial"

    def settings(defense: str) -> dict[str, object]:
        return {
            **{"question": question, "model": model, "state": state, "defense": defense},
            **{"most clients": options.clients, "simulated": options.simulated, "seed": seed},
            "attack": attack,
        }

    missing = [text for text in options.defenses if applies(text, question) and not rows.has(settings(text))]
    if not missing:
        return
    asked = ask(
        question, model, clients=options.clients, simulated=options.simulated, root=options.data, seed=seed,
        device=device, attack=attack, steps=options.steps,
    )  # fmt: skip
    control = None
    for text in dict.fromkeys(["none", *missing]):
        start = time.perf_counter()
        try:
            defense = defense_of(text, asked.task, asked.labelled, BATCHES[question], seed)
            result = asked.audit(defense=defense, control=control)
        except RefinerError as error:
            print(f"{question}, {model}, {text}: {error}", flush=True)
            continue
        control = result if text == "none" else control
        if text not in missing:
            continue
        rows.add(
            {
                **settings(text),
                "attacker": "knows the defence",
                "batch": BATCHES[question],
                "clients": asked.clients,
                **figures(result),
                "seconds": round(time.perf_counter() - start, 1),
            }
        )


def train_all(
    rows: Rows, data: str, model: str, seed: int, batch: int, options: argparse.Namespace, device: str
) -> None:
    """Train with every defence that has no row yet."""
    lr = options.lr or LEARNING_RATES.get(model, 0.05)

    def settings(defense: str) -> dict[str, object]:
        return {
            **{"trained on": data, "model": model, "defense": defense, "batch": batch},
            **{"rounds": options.rounds, "lr": lr, "seed": seed},
            **({"training images": options.training_images} if data == "cifar10" else {}),
        }

    texts = [text for text in options.defenses if not (_is_recup(text) and data in _WITHOUT_ATTRIBUTE)]
    missing = [text for text in texts if not rows.has(settings(text))]
    if not missing:
        return
    images = training_data(data, options.data, options.training_images)
    for text in missing:
        start = time.perf_counter()
        try:
            accuracy = federated_accuracy(
                images,
                model,
                text,
                batch=batch,
                rounds=options.rounds,
                lr=lr,
                seed=seed,
                device=device,
            )
        except RefinerError as error:
            print(f"training on {data}, {model}, {text}: {error}", flush=True)
            continue
        majority = round(images.majority, 4)
        seconds = round(time.perf_counter() - start, 1)
        rows.add({**settings(text), "accuracy": accuracy, "majority": majority, "seconds": seconds})


def applies(defense: str, question: str) -> bool:
    """Whether a question can be asked of a defence."""
    return not (_is_recup(defense) and TRAINED_ON[question] in _WITHOUT_ATTRIBUTE)


def _is_recup(defense: str) -> bool:
    return defense.partition(":")[0] == "recup"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with the files of CIFAR-10 and LFW; by default "
                        "those of REFINER_DATA")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", nargs="+", default=["lenet", "resnet10"], choices=MODELS)
    parser.add_argument("--question", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--defenses", nargs="+", default=DEFENSES, metavar="NAME:SETTING=VALUE")
    parser.add_argument("--seeds", nargs="*", type=int, default=[DEFAULT_SEED], help="of the attacks; none "
                        "for trainings only; 0 chose the settings")  # fmt: skip
    parser.add_argument("--membership-attacks", nargs="+", metavar="NAME:SETTING=VALUE", help="others than "
                        "likelihood")  # fmt: skip
    parser.add_argument("--clients", type=int, default=100, help="at most")
    parser.add_argument("--simulated", type=int, default=600, help="clients that the attack learns from")
    parser.add_argument("--steps", type=int, default=0, help="in which the attacked model learns from public "
                        "images first")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1000, help="of a training; 0 for none")
    rates = ", ".join(f"{rate:g} for {name}" for name, rate in LEARNING_RATES.items())
    parser.add_argument("--lr", type=float, help=f"of a training; by default {rates}")
    parser.add_argument("--training-images", type=int, default=FIRST_VICTIM, help="of CIFAR-10")
    parser.add_argument("--training-seeds", nargs="+", type=int, help="by default those of --seeds")
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    attacks, trainings = (Rows(options.out / f"{name}.jsonl") for name in ("inference", "inference-training"))
    for model in options.model:
        for seed in options.seeds:
            for question in options.question:
                default = [default_attack(question, options.simulated)]
                about_members = question.startswith("membership")
                for attack in (about_members and options.membership_attacks) or default:
                    attack_all(attacks, question, model, seed, attack, options, device)
        if options.rounds:
            for seed in options.training_seeds or options.seeds:
                for data, batch in dict.fromkeys(
                    (TRAINED_ON[name], BATCHES[name]) for name in options.question
                ):
                    train_all(trainings, data, model, seed, batch, options, device)


if __name__ == "__main__":
    main()
