"""FedSGD on CIFAR-10 in one process: what a defence costs in accuracy."""

import time

import torch
from torch import Tensor

from refiner.core import Task
from refiner.defenses import Defense
from refiner.models import make_model


def pixels(images: Tensor, device: str) -> Tensor:
    """uint8 images as float in 0..1 on the device."""
    return images.to(device).float() / 255


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    """Percent right."""
    right = [
        (model(x).argmax(1) == y).sum() for x, y in zip(images.split(2000), labels.split(2000), strict=True)
    ]
    return float(torch.stack(right).sum()) / len(images) * 100


def train(
    defense: Defense,
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    rounds: int,
    clients: int,
    rate: float,
    seed: int = 0,
    model_name: str = "lenet",
    every: int = 1000,
    label: str = "",
    kept: bool = True,
) -> list[tuple[int, float]]:
    """Accuracies along the training; each client draws 128 of its own samples a round.

    With `kept` noise a sample has the same for the whole training, otherwise every round has its own key.
    """
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model = make_model(model_name).to(x.device)
    task = Task(model, example=x[:2])
    draws = torch.Generator(x.device).manual_seed(seed)
    share = len(x) // clients
    shuffled = torch.randperm(len(x), generator=draws, device=x.device)[: share * clients].view(
        clients, share
    )
    curve, state = [], defense.init_state(len(x))
    began = time.perf_counter()
    for number in range(1, rounds + 1):
        pick = torch.randint(share, (clients, 128), generator=draws, device=x.device)
        ids = shuffled.gather(1, pick)
        noise_seed = None if kept else number
        update = defense.protect(task, x[ids], y[ids], ids=ids, seed=noise_seed, state=state)
        step = task.unflatten(update.flat().mean(0, keepdim=True))
        with torch.no_grad():
            for name in task.names:
                model.get_parameter(name).sub_(rate * step[name][0])
        if number % every == 0 or number == rounds:
            curve.append((number, accuracy(model, x_test, y_test)))
            spent = time.perf_counter() - began
            print(
                f"{label} round {number}: {curve[-1][1]:.2f} %  {1000 * spent / number:.1f} ms a round",
                flush=True,
            )
    return curve
