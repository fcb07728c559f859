"""Fitting of substitute attribute classifiers to simulated gradients of public people."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.core.gradients import gradients
from refiner.core.task import Task
from refiner.data import batches_of_one_value
from refiner.defenses.attribute_zoo import AttributeZoo, revealed_input, train_members
from refiner.errors import DataError, UnsupportedModelError

# Clients whose gradients are computed at a time.
_AT_ONCE = 32


def fit_zoo(
    task: Task,
    images: Tensor,
    labels: Tensor,
    attribute: Tensor,
    groups: Tensor,
    *,
    batch: int,
    clients: int,
    members: int,
    seed: int,
) -> AttributeZoo:
    """Return classifiers of an attribute, trained on three quarters of the people and tested on the others.

    Args:
        task: The model in the state in which clients will use it, and its loss.
        images: Public images `[M, *input]`.
        labels: Their labels `[M]`.
        attribute: Their attribute `[M]`, 0 or 1; −1 if unknown.
        groups: The person or other group of each image `[M]`.
        batch: Images in a client's batch.
        clients: Simulated clients to train on, at least; a third as many to test.
        members: The number of classifiers.
        seed: Seed of everything random.

    Returns:
        The classifiers.

    Raises:
        DataError: There are too few images or people with one of the values.
        UnsupportedModelError: The model's last layer is not linear with a bias.
    """
    checks.integer("batch", batch, 1)
    checks.integer("clients", clients, 2)
    checks.integer("members", members, 2)
    checks.integer("seed", seed, 0)
    for field, tensor in (("labels", labels), ("attribute", attribute), ("groups", groups)):
        if tensor.dtype != torch.long or tensor.shape != (len(images),):
            raise DataError(field=field, value=tensor, expected=f"torch.int64 [{len(images)}]")
    weight, bias = _last_layer(task)
    parts = _split_people(attribute, groups, seed)
    counts = (clients, -(-clients // 3))
    inputs, values = [], []
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        batches, value = _simulated_clients(part, groups, batch, count, seed + 10**6 * number)
        inputs.append(_revealed_inputs(task, images, labels, batches, weight, bias))
        values.append(value.to(inputs[-1].device))
    mean, spread, trained = train_members(inputs[0], values[0], members, seed)
    zoo = AttributeZoo(weight, bias, task.shapes[bias][0], mean, spread, trained)
    right = (zoo.logits(inputs[1], range(members)) > 0) == (values[1] > 0)
    rates = [float(right[:, values[1] == value].float().mean()) for value in (0, 1)]
    return replace(zoo, accuracy=sum(rates) / 2)


def _last_layer(task: Task) -> tuple[str, str]:
    """The names of the last layer's weight and bias."""
    layer = task.layers[-1].name
    weight, bias = (f"{layer}.{part}" if layer else part for part in ("weight", "bias"))
    is_linear = isinstance(task.model.get_submodule(layer), nn.Linear)
    if not is_linear or weight not in task.shapes or task.shapes.get(bias) != (task.classes,):
        raise UnsupportedModelError(
            "recup: the model's last layer is not linear with a bias, whose gradient reveals its mean input"
        )
    return weight, bias


def _split_people(attribute: Tensor, groups: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The attribute of three quarters of the people of either value, and of the others; −1 elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(attribute), dtype=torch.bool)
    for value in (0, 1):
        people = torch.tensor(sorted(set(groups[attribute == value].tolist())), dtype=torch.long)
        if len(people) < 2:
            expected = f"at least two groups, such as people, whose attribute is {value}"
            raise DataError(field="attribute", value=len(people), expected=expected)
        order = people[torch.randperm(len(people), generator=generator)]
        is_test |= torch.isin(groups, order[: max(1, len(people) // 4)])
    return torch.where(is_test, -1, attribute), torch.where(is_test, attribute, -1)


def _simulated_clients(
    attribute: Tensor, groups: Tensor, batch: int, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The batches `[n, B]` of simulated clients, equally many of either value, and their values."""
    drawn: list[Tensor] = []
    values: list[Tensor] = []
    while sum(map(len, values)) < count:
        batches, value = batches_of_one_value(attribute, groups, batch, seed=seed + len(values))
        fewest = min(int((value == v).sum()) for v in (0, 1))
        if not fewest:
            known = [int((attribute == v).sum()) for v in (0, 1)]
            expected = f"images of both values for batches of {batch}"
            raise DataError(field="attribute", value=f"{known[0]} and {known[1]} images", expected=expected)
        drawn += [batches[value == v][:fewest] for v in (0, 1)]
        values.append(torch.arange(2).repeat_interleave(fewest))
    return torch.cat(drawn), torch.cat(values)


def _revealed_inputs(
    task: Task, images: Tensor, labels: Tensor, batches: Tensor, weight: str, bias: str
) -> Tensor:
    """The mean input of the last layer `[n, inputs]` that the clients' gradients reveal."""
    like = next(iter(task.parameters().values()))
    found = []
    for rows in torch.split(batches, _AT_ONCE):
        x = images[rows.to(images.device)].to(like)
        y = labels[rows.to(labels.device)].to(like.device)
        gradient = gradients(task, x, y)
        found.append(revealed_input(gradient[weight].float(), gradient[bias].float()).mean.detach())
    return torch.cat(found)
