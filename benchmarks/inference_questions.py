"""The questions of the comparison of inference attacks: the clients and the attack of each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from attribute_inference import scores
from evaluation_splits import UNSEEN_PEOPLE, unseen_candidates
from inference_training import Labelled, learn
from membership import POOL
from pixels import pixels
from refiner.audit import (
    AttributeAudit,
    MembershipAudit,
    audit_attribute,
    audit_membership,
    load_attribute_clients,
)
from refiner.core import Task
from refiner.data import ImageDataset, frequent_classes, load_data
from refiner.inference import AttributeInference, make_membership_attack, pair_by_label
from refiner.models import make_model

BATCHES = {"membership": 16, "membership-lfw": 8, "gender": 8, "person": 8}
"""Images of a client for each question, in the attack as in the training."""
TRAINED_ON = {
    "membership": "cifar10",
    "membership-lfw": "lfw-identity",
    "gender": "lfw-identity",
    "person": "lfw-gender",
}
"""What the training of each question is about; see `training_data`."""
# Of each person of LFW: two pairs of a member and a non-member, and two public images or more.
_LEAST_IMAGES = 6
_WOMAN = 0


@dataclass(frozen=True, eq=False)
class Question:
    """Clients and the model of one seed, and an attack.

    Attributes:
        task: The model.
        public: The attacker's images and their labels.
        labelled: What RecUP is fitted to: public images; None if they have no attribute.
        clients: The number of clients.
        audit: `audit(defense=…, control=…)` returns the result for a defence.
    """

    task: Task
    public: tuple[Tensor, Tensor]
    labelled: Labelled | None
    clients: int
    audit: Callable[..., MembershipAudit | AttributeAudit]


def ask(
    name: str,
    model: str,
    *,
    clients: int,
    simulated: int,
    root: Path | None,
    seed: int,
    device: str,
    attack: str | None = None,
    steps: int = 0,
) -> Question:
    """Return a question about clients that are drawn with a seed.

    Args:
        name: A key of `BATCHES`.
        model: The model's name.
        clients: The most clients.
        simulated: Simulated clients that the attack learns from.
        root: The folder with the datasets' files; None for those of REFINER_DATA or the cache.
        seed: Seed of the clients, the initial weights and the attack.
        device: Where to compute.
        attack: Another attack than `likelihood` on membership.
        steps: Steps in which the model learns from the attacker's public images before clients get it.
    """
    asked = _ask(name, model, clients, attack or default_attack(name, simulated), root, seed, device)
    if steps:
        learn(asked.task, *asked.public, steps=steps, seed=seed)
    return asked


def default_attack(name: str, simulated: int) -> str:
    """Return the attack of a question, which learns from so many simulated clients."""
    return f"{'attribute' if name in ('gender', 'person') else 'likelihood'}:clients={simulated}"


def _ask(
    name: str, model: str, clients: int, attack: str, root: Path | None, seed: int, device: str
) -> Question:
    batch = BATCHES[name]
    if name in ("gender", "person"):
        limits = UNSEEN_PEOPLE if name == "gender" else {}
        people = load_attribute_clients(
            "lfw", name, root=root, clients=clients, batch=batch, seed=seed, **limits
        )
        task = _initial_model(model, people.classes, people.x[0], seed, device)
        simulated = int(attack.rpartition("=")[2])
        audit = partial(
            audit_attribute, task, people.x.to(device), people.y.to(device), people.attribute,
            public=people.public, groups=people.groups, attack=AttributeInference(clients=simulated),
            name=name, seed=seed,
        )  # fmt: skip
        labelled = (*people.public, people.groups[1])
        return Question(task, people.public[:2], labelled, len(people.x), audit)
    if name == "membership":
        data = load_data("cifar10", "train", root=root)
        candidates, public = unseen_candidates(data.labels), torch.arange(POOL)
    else:
        data = frequent_classes(load_data("lfw", root=root), _LEAST_IMAGES)
        candidates, public = _divided(data.labels, seed)
    return _membership(data, candidates, public, model, clients, batch, attack, seed, device)


def figures(result: MembershipAudit | AttributeAudit) -> dict[str, object]:
    """Return the AUC with its interval, those of the control and a blind attack, rates and the verdict."""
    if isinstance(result, AttributeAudit):
        return scores(result)
    auc, accuracy = result.auc, result.balanced_accuracy
    rates = {
        f"TPR at {100 * point.fpr:g} % FPR": point.value
        for point in result.tpr
        if result.has_enough_for(point)
    }
    return {
        "verdict": result.level,
        "undefended": result.undefended.value,
        **{"AUC": auc.value, "AUC low": auc.low, "AUC high": auc.high},
        "blind AUC": None if result.blind is None else result.blind.value,
        "balanced accuracy": None if accuracy is None else accuracy.value,
        **rates,
    }


def _membership(
    data: ImageDataset,
    candidates: Tensor,
    public: Tensor,
    model: str,
    clients: int,
    batch: int,
    attack: str,
    seed: int,
    device: str,
) -> Question:
    """An attack on membership with members and non-members among candidates."""
    labels = data.labels[candidates]
    # Every pair has one label.
    pairs = sum(int((labels == label).sum()) // 2 for label in labels.unique().tolist())
    count = min(clients, pairs // batch)
    inside, outside, y = pair_by_label(candidates, labels, count, batch, seed=seed)
    x, others = (
        pixels(data.images[rows.flatten()], device).unflatten(0, (count, batch)) for rows in (inside, outside)
    )
    known = pixels(data.images[public], device)
    task = _initial_model(model, data.classes, x[0], seed, device)
    audit = partial(
        audit_membership, task, x, y.to(device), non_members=(others, y.to(device)),
        public=(known, data.labels[public].to(device)), attack=make_membership_attack(attack), seed=seed,
    )  # fmt: skip
    labelled = None
    if "gender" in data.attributes:
        gender = data.attribute("gender")[public]
        is_woman = torch.where(gender < 0, -1, (gender == _WOMAN).long())
        labelled = (known.cpu(), data.labels[public], is_woman, data.labels[public])
    return Question(task, (known, data.labels[public]), labelled, count, audit)


def _divided(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of candidates and of public images: two thirds and one third of each person's."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    candidates, public = [], []
    for person in labels.unique().tolist():
        own = order[labels[order] == person]
        public.append(own[: len(own) // 3])
        candidates.append(own[len(own) // 3 :])
    return torch.cat(candidates), torch.cat(public)


def _initial_model(model: str, classes: int, example: Tensor, seed: int, device: str) -> Task:
    torch.manual_seed(seed)
    network = make_model(model, classes=classes, input_shape=tuple(example.shape[1:]))
    return Task(network.to(device), example=example.to(device))
