"""LOKI: identity channels for each client let a server read images off a sum of many clients' uploads."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks.base import Attack, Reconstruction, RunOptions
from refiner.attacks.front_module import (
    ReadableUnits,
    brightness_edges,
    brightness_units,
    front_of,
    put_in_front,
)
from refiner.attacks.imprint import read_units
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.observation import Observation
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.task import Task
from refiner.errors import DataError


class LokiModule(ReadableUnits):
    """Brightness bins behind a convolution that copies the image into the channels of one client.

    Each client has a channel more, which is constant: its gradient is the client's share of the bias's.

    Args:
        input_shape: The shape (C, H, W) of one image.
        clients: The clients of a sum.
        edges: The edges of the bins.
        scale: The length of what an active unit adds to the input.
        tap: The factor of the copies.
    """

    def __init__(
        self, input_shape: Sequence[int], clients: int, edges: Tensor, scale: float, tap: float
    ) -> None:
        channels, height, width = input_shape
        weight, bias = brightness_units(edges, math.prod(input_shape))
        constant = torch.zeros(len(weight), height * width)
        each = torch.cat([weight / tap, constant], dim=1)
        super().__init__(input_shape, each.repeat(1, clients), bias, scale, bounded=True)
        self.channels, self.clients, self.tap = channels, clients, tap
        self.copies = nn.Conv2d(channels, (channels + 1) * clients, 3, padding=1)
        self.assign(0)

    def assign(self, client: int) -> None:
        """Set the convolution to what one client of the sum receives.

        Args:
            client: The client's number in the sum.
        """
        first = (self.channels + 1) * client
        with torch.no_grad():
            self.copies.weight.zero_()
            self.copies.bias.zero_()  # type: ignore[union-attr]
            for channel in range(self.channels):
                self.copies.weight[first + channel, channel, 1, 1] = self.tap
            self.copies.bias[first + self.channels] = self.tap  # type: ignore[index]

    def encoder_input(self, x: Tensor) -> Tensor:
        """The channels of all clients, flattened; those of the others are zero."""
        copies: Tensor = self.copies(x)
        return copies.flatten(1)


@dataclass(frozen=True)
class Loki(Attack):
    """Reads every client's images off the sum of their uploads; the server changes the model.

    Each client receives a convolution that copies its images into channels of its own, so that the gradient
    of the linear layer behind it has columns of its own for every client, also after secure aggregation. The
    rest is `imprint`: bins of mean brightness, the largest are read without any look at the truth.

    >>> from refiner import LeNet
    >>> task = Loki(clients=2).changed_task(Task(LeNet(), example=torch.rand(1, 3, 32, 32)), samples=8)
    >>> task.shapes["front.encoder.weight"]
    torch.Size([16, 8192])
    """

    name: ClassVar[str] = "loki"
    reference: ClassVar[str] = (
        "Zhao, Sharma, Elkordy, Ezzeldin, Avestimehr and Bagchi, LOKI: Large-scale Data Reconstruction "
        "Attack against Federated Learning through Model Manipulation, IEEE S&P 2024"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"changed_model"})

    clients: int = 1
    """The clients whose uploads the server sees as a sum."""
    bins: int = 4
    """Bins for each image of a client's batch."""
    mean: float = 0.473
    """The mean of the images' mean brightness, by default CIFAR-10's."""
    std: float = 0.125
    """Its standard deviation; more behind a defence whose noise changes the brightness."""
    scale: float = 1.0
    """The length of what an active unit adds to the input: the larger, the larger is its gradient."""
    tap: float = 500.0
    """The factor of the copies: the larger, the larger is the gradient beside noise."""
    input_range: tuple[float, float] = (0.0, 1.0)
    """The range to which reconstructions are clipped."""

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients, 1)
        checks.integer("bins", self.bins, 1)
        checks.number("std", self.std, 0, 1e3, above=True)
        checks.number("mean", self.mean, -1e3, 1e3)
        for name in ("scale", "tap"):
            checks.number(name, getattr(self, name), 0, 1e6, above=True)

    def check(self, task: Task) -> None:
        """Raise unless the inputs are images.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The inputs have no channels.
        """
        if len(task.input_shape) != 3:
            raise DataError(
                field="input shape", value=list(task.input_shape), expected="images [C, H, W] for loki"
            )

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the module in front of the model, as the first client receives it.

        Args:
            task: The model and its loss.
            samples: The images of all clients of a sum.

        Returns:
            The task that clients receive.

        Raises:
            DataError: The images can't be divided among the clients, or nothing can be put in front.
        """
        self.check(task)
        if samples % self.clients:
            raise DataError(
                field="clients",
                value=self.clients,
                expected=f"a divisor of the {samples} images of a sum: the clients that are summed",
            )
        edges = brightness_edges(self.bins * samples // self.clients, self.mean, self.std)
        return put_in_front(task, LokiModule(task.input_shape, self.clients, edges, self.scale, self.tap))

    def send_to(self, task: Task, client: int) -> None:
        """Set the model of `task` to what one client of a sum receives.

        Args:
            task: The result of `changed_task`.
            client: The client's number in the sum.

        Raises:
            DataError: There are more clients than channels for them.
        """
        front = front_of(task, LokiModule, self.name)
        assert isinstance(front, LokiModule)
        if client >= front.clients:
            raise DataError(
                field="clients", value=self.clients, expected=f"at least {client + 1}, the clients of a sum"
            )
        front.assign(client)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Read the images of every client off the sum.

        Args:
            observations: One or more sums of the same clients; of several the mean is read.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The images, client by client. The objective is the share of the bins' gradient that no image was
            read from.

        Raises:
            DataError: The uploads were made with another model.
        """
        start = time.perf_counter()
        first = observations[0]
        front = front_of(first.task, LokiModule, self.name)
        assert isinstance(front, LokiModule)
        named = first.task.unflatten(torch.stack([o.gradient for o in observations]).mean(0))
        pixels = math.prod(first.task.input_shape[1:])
        units = named["front.encoder.weight"]
        columns = units.view(*units.shape[:2], front.clients, -1).transpose(1, 2).flatten(0, 1)
        weight, constant = torch.split(columns, [front.channels * pixels, pixels], dim=2)
        x, objective = read_units(weight, constant.mean(2), first.samples // front.clients, self.input_range)
        x = x.view(len(first.gradient), first.samples, *first.task.input_shape)
        granted = first.labels
        labels = granted if threat.labels and granted is not None else infer_labels(*observations)
        diverged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        objective = objective.view(len(x), front.clients).mean(1)
        return Reconstruction(x, labels.to(x.device), objective, diverged, time.perf_counter() - start)
