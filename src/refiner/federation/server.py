"""What a server does with the mean of the clients' moves; named as Flower's strategies, and equal to them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.registry import make

State = dict[str, Tensor]


class Server(Protocol):
    """One of `SERVERS`."""

    name: ClassVar[str]

    def init(self, values: Tensor) -> State:
        """What it remembers before the first round of parameters `[N]`."""

    def step(self, values: Tensor, move: Tensor, state: State) -> tuple[Tensor, State]:
        """The next parameters after a mean move `[N]`, old − new, of the clients."""


@dataclass(frozen=True)
class FedAvg:
    """The mean of what the clients have: the move itself.

    >>> FedAvg().step(torch.ones(2), torch.full((2,), 0.25), {})[0].tolist()
    [0.75, 0.75]
    """

    name: ClassVar[str] = "fedavg"

    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        checks.number("server_learning_rate", self.server_learning_rate, 0, above=True)

    def init(self, values: Tensor) -> State:
        """Nothing."""
        return {}

    def step(self, values: Tensor, move: Tensor, state: State) -> tuple[Tensor, State]:
        """The next parameters."""
        return values - self.server_learning_rate * move, state


@dataclass(frozen=True)
class FedAvgM:
    """Momentum on the moves (Hsu et al. 2019).

    >>> FedAvgM(server_momentum=1.5)
    Traceback (most recent call last):
    refiner.errors.SettingError: server_momentum = 1.5: expected a number in [0, 1]
    """

    name: ClassVar[str] = "fedavgm"

    server_learning_rate: float = 1.0
    server_momentum: float = 0.9
    """Flower's default is 0, which is `FedAvg`."""

    def __post_init__(self) -> None:
        checks.number("server_learning_rate", self.server_learning_rate, 0, above=True)
        checks.number("server_momentum", self.server_momentum, 0, 1)

    def init(self, values: Tensor) -> State:
        """No speed yet."""
        return {"speed": torch.zeros_like(values)}

    def step(self, values: Tensor, move: Tensor, state: State) -> tuple[Tensor, State]:
        """The next parameters and speed."""
        speed = self.server_momentum * state["speed"] + move
        return values - self.server_learning_rate * speed, {"speed": speed}


@dataclass(frozen=True)
class FedAdam:
    """Adam on the moves (Reddi et al. 2021), its first steps corrected as Flower does.

    >>> FedAdam(beta_1=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: beta_1 = 1: expected a number in [0, 1)
    """

    name: ClassVar[str] = "fedadam"

    eta: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3
    """Moves far below it are scaled up by eta / tau, larger ones become steps of about eta."""

    def __post_init__(self) -> None:
        checks.number("eta", self.eta, 0, above=True)
        for name, beta in (("beta_1", self.beta_1), ("beta_2", self.beta_2)):
            if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < 1:
                raise checks.wrong(name, beta, "a number in [0, 1)")
        checks.number("tau", self.tau, 0, above=True)

    def init(self, values: Tensor) -> State:
        """Two moments of nothing, after no round."""
        rounds = torch.zeros((), dtype=torch.float64, device=values.device)
        return {"first": torch.zeros_like(values), "second": torch.zeros_like(values), "rounds": rounds}

    def step(self, values: Tensor, move: Tensor, state: State) -> tuple[Tensor, State]:
        """The next parameters and moments."""
        first = torch.lerp(move, state["first"], self.beta_1)
        second = torch.lerp(move.square(), state["second"], self.beta_2)
        rounds = state["rounds"] + 1
        # Moments begin at zero. Flower's exponent is one more than the rounds done, and so is this one.
        eta = self.eta * (1 - self.beta_2 ** (rounds + 1)).sqrt() / (1 - self.beta_1 ** (rounds + 1))
        values = values - eta * first / (second.sqrt() + self.tau)
        return values, {"first": first, "second": second, "rounds": rounds}


SERVERS: dict[str, Callable[..., Server]] = {kind.name: kind for kind in (FedAvg, FedAvgM, FedAdam)}
"""Every server by name."""


def make_server(text: str) -> Server:
    """A server by its name, one of `SERVERS`, with settings: `fedavgm:server_momentum=0.5`.

    >>> make_server("fedprox")
    Traceback (most recent call last):
    refiner.errors.DataError: server = 'fedprox': unknown... Known: fedavg, fedavgm, fedadam
    """
    return make(SERVERS, "server", text)
