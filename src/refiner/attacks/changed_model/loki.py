"""LOKI: identity channels for each client let a server read images off a sum of many clients' uploads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks.changed_model.front_module import ReadableUnits, brightness_units
from refiner.attacks.changed_model.imprint import Imprint, read_units
from refiner.core.task import Task
from refiner.errors import DataError

# The value of the constant channel: small, so that it takes little of a clipped gradient's length.
_CONSTANT = 0.1


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
        first, weight, bias = (self.channels + 1) * client, self.copies.weight, self.copies.bias
        assert bias is not None
        with torch.no_grad():
            weight.zero_()
            bias.zero_()
            for channel in range(self.channels):
                weight[first + channel, channel, 1, 1] = self.tap
            bias[first + self.channels] = _CONSTANT * self.tap

    def encoder_input(self, x: Tensor) -> Tensor:
        """The channels of all clients, flattened; those of the others are zero."""
        copies: Tensor = self.copies(x)
        return copies.flatten(1)


@dataclass(frozen=True)
class Loki(Imprint):
    """Reads every client's images off the sum of their uploads; the server changes the model.

    Each client receives a convolution that copies its images into channels of its own, so that the gradient
    of the linear layer behind it has columns of its own for every client, also after secure aggregation. The
    rest is `imprint`: bins of mean brightness, the largest are read without any look at the truth.

    >>> from refiner import LeNet, Task
    >>> task = Loki(clients=2).changed_task(Task(LeNet(), example=torch.rand(1, 3, 32, 32)), samples=8)
    >>> task.shapes["front.encoder.weight"]
    torch.Size([16, 8192])
    """

    name: ClassVar[str] = "loki"
    reference: ClassVar[str] = (
        "Zhao, Sharma, Elkordy, Ezzeldin, Avestimehr and Bagchi, LOKI: Large-scale Data Reconstruction "
        "Attack against Federated Learning through Model Manipulation, IEEE S&P 2024"
    )
    module: ClassVar[type[ReadableUnits]] = LokiModule

    bins: int = 4
    """Bins for each image of a client's batch."""
    clients: int = 1
    """The clients whose uploads the server sees as a sum."""
    tap: float = 500.0
    """The factor of the copies: the larger, the larger is the gradient beside noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("clients", self.clients, 1)
        checks.number("tap", self.tap, 0, 1e6, above=True)

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

    def front(self, input_shape: tuple[int, ...], samples: int) -> ReadableUnits:
        """Return the module for images of a shape and sums of so many images, as the first client gets it."""
        if samples % self.clients:
            raise DataError(
                field="clients",
                value=self.clients,
                expected=f"as many as a sum has (summed_clients), which divide its {samples} images",
            )
        edges = self.edges(samples // self.clients)
        return LokiModule(input_shape, self.clients, edges, self.scale, self.tap)

    def send_to(self, task: Task, client: int, clients: int) -> None:
        """Set the model of `task` to what one client of a sum receives.

        Args:
            task: The result of `changed_task`.
            client: The client's number in the sum.
            clients: The clients of a sum.

        Raises:
            DataError: There are channels for another number of clients.
        """
        front = self.front_of(task)
        assert isinstance(front, LokiModule)
        if clients != front.clients:
            raise DataError(
                field="clients",
                value=self.clients,
                expected=f"{clients}, as many as a sum has (summed_clients)",
            )
        front.assign(client)

    def read(
        self, front: ReadableUnits, gradients: Mapping[str, Tensor], samples: int
    ) -> tuple[Tensor, Tensor]:
        """Return the images of every client, and the share of the gradient in bins that were not read.

        Args:
            front: The module in front of the model.
            gradients: The sums by parameter.
            samples: The images of all clients of a sum.
        """
        assert isinstance(front, LokiModule)
        units = gradients["front.encoder.weight"]
        columns = units.view(*units.shape[:2], front.clients, -1).transpose(1, 2).flatten(0, 1)
        pixels = columns.shape[2] // (front.channels + 1)
        weight, constant = torch.split(columns, [front.channels * pixels, pixels], dim=2)
        x, objective = read_units(
            weight, constant.mean(2) / _CONSTANT, samples // front.clients, self.input_range
        )
        return x.view(len(units), samples, -1), objective.view(len(units), -1).mean(1)
