"""Federated training that measures what a defence costs in accuracy, for the benchmarks of inference."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from evaluation_splits import FIRST_VICTIM
from refiner.core import Task
from refiner.data import ImageDataset, frequent_classes, hold_out, iid, limit_per_class, load_data
from refiner.defenses import Defense, RecUP, make_defense
from refiner.federation import FederatedSettings
from refiner.federation.training import train
from refiner.models import make_model
from refiner.registry import parse_settings

CLIENTS = 10
EVALUATIONS, LAST = 20, 5
# Of fewer images of a person a model learns little; more would make one answer right too often.
_LEAST_IMAGES, _MOST_IMAGES = 20, 50
_WOMAN = 0
Labelled = tuple[Tensor, Tensor, Tensor, Tensor]
"""Images, labels, attribute (0, 1, or −1 if unknown) and person: what RecUP is fitted to."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Images to train on and to test on, and what RecUP is fitted to; None if they have no attribute."""

    train: ImageDataset
    test: ImageDataset
    labelled: Labelled | None

    @property
    def majority(self) -> float:
        """The accuracy of always answering the most frequent class."""
        return float(self.test.labels.bincount().max()) / len(self.test)


def training_data(name: str, root: Path | None, most: int = FIRST_VICTIM) -> TrainingData:
    """Return the images of a task; none of CIFAR-10's is a victim of any study.

    Args:
        name: "cifar10"; "lfw-identity", up to 50 images of each person with at least 20; or "lfw-gender", the
            gender of all people, of whom every fifth is tested on, with as many images of women as of men.
        root: The folder with the dataset's files; None for those of REFINER_DATA or the cache.
        most: The most training images of CIFAR-10.
    """
    if name == "cifar10":
        images = load_data("cifar10", "train", root=root)
        chosen = images.subset(torch.arange(len(images)) < min(most, FIRST_VICTIM))
        return TrainingData(chosen, load_data("cifar10", "test", root=root), None)
    people = load_data("lfw", root=root)
    if name == "lfw-identity":
        frequent = frequent_classes(people, _LEAST_IMAGES)
        training, test = hold_out(limit_per_class(frequent, _MOST_IMAGES, seed=0))
        gender = training.attribute("gender")
        is_woman = torch.where(gender < 0, -1, (gender == _WOMAN).long())
        pixels = training.images.float() / 255
        return TrainingData(training, test, (pixels, training.labels, is_woman, training.labels))
    women = people.subset(people.attribute("gender") == _WOMAN)
    men = people.subset(people.attribute("gender") > _WOMAN)
    order = torch.randperm(len(men), generator=torch.Generator().manual_seed(0))
    chosen = order[: len(women)]
    images = torch.cat([women.images, men.images[chosen]])
    person = torch.cat([women.labels, men.labels[chosen]])
    gender = torch.cat([part.attribute("gender") for part in (women, men)])[: len(person)]
    is_test = person % 5 == 0
    parts = [
        ImageDataset(images[rows], gender[rows], 2, "lfw", split)
        for rows, split in ((~is_test, "train"), (is_test, "test"))
    ]
    person, gender = person[~is_test], gender[~is_test]
    most_shown = person == person.bincount().argmax()
    values = torch.where(gender == gender[most_shown][0], most_shown.long(), -1)
    # Every image of that person is a group: they are many clients.
    groups = torch.where(most_shown, people.classes + torch.arange(len(person)), person)
    return TrainingData(parts[0], parts[1], (parts[0].images.float() / 255, gender, values, groups))


def defense_of(text: str, task: Task, labelled: Labelled | None, batch: int, seed: int) -> Defense | None:
    """Return a defence by its name and settings; RecUP fitted, and None where there is no attribute to hide.

    Args:
        text: `NAME:setting=value,…`.
        task: The model that clients use.
        labelled: What RecUP is fitted to.
        batch: Images of a client.
        seed: Seed of the fit.
    """
    name, settings = parse_settings("defense", text)
    if name != RecUP.name or "file" in settings:
        return make_defense(text)
    if labelled is None:
        return None
    images, labels, attribute, groups = labelled
    fitted: RecUP = RecUP.fit(
        task, images, labels, attribute, groups=groups, batch=batch, seed=seed, **settings
    )
    return fitted


def learn(task: Task, images: Tensor, labels: Tensor, *, steps: int, seed: int) -> None:
    """Train the model of a task in place, undefended, by steps of SGD on batches of 64 at a rate of 0.1.

    Args:
        task: The model and its loss.
        images: What it learns from.
        labels: Their labels.
        steps: The number of steps.
        seed: Seed of the batches.
    """
    draws, parameters = torch.Generator().manual_seed(seed), list(task.model.parameters())
    device = parameters[0].device
    for _ in range(steps):
        rows = torch.randint(len(images), (64,), generator=draws)
        scores = task.model(images[rows.to(images.device)].to(device))
        loss = task.loss_of_scores(scores, labels[rows.to(labels.device)].to(device))
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)


def federated_accuracy(
    data: TrainingData,
    model: str,
    defense: str,
    *,
    batch: int,
    rounds: int,
    lr: float,
    seed: int,
    device: str,
) -> float:
    """Return the test accuracy at the end of a federated training of ten clients, who are protected together.

    It is the mean of the last five of twenty evaluations, as single ones vary by several points. RecUP keeps
    the classifiers of the untrained model.

    Args:
        data: What to train and to test on.
        model: The model's name.
        defense: The defence of every client, with its settings.
        batch: Images of a client in a round.
        rounds: Rounds of FedSGD.
        lr: The learning rate.
        seed: Seed of the initial weights, the partition, the batches and the noise.
        device: Where to compute.
    """
    torch.manual_seed(seed)
    shape = tuple(data.train.images.shape[1:])
    network = make_model(model, classes=data.train.classes, input_shape=shape).to(device)
    task = Task(network, example=torch.zeros(1, *shape, device=device))
    protector = defense_of(defense, task, data.labelled, batch, seed)
    if protector is None:
        raise ValueError(f"{defense} needs an attribute to hide")
    settings = FederatedSettings(rounds, CLIENTS, batch=batch, lr=lr, seed=seed)
    parts = iid(data.train.labels, CLIENTS, seed=seed)
    every = max(1, rounds // EVALUATIONS)
    curve = train(task, data.train, data.test, parts, settings, protector, evaluate_every=every)
    last = [accuracy for _, accuracy in curve[-LAST:]]
    return sum(last) / len(last)
