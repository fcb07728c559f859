"""Server optimizers, named after Flower's strategies and equal to them: how the mean update is applied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.registry import make_by_name

State = dict[str, Tensor]
"""A server's optimizer state by name, as a checkpoint stores it."""

# The name of the momentum buffer in checkpoints.
_MOMENTUM = "speed"


class Server(Protocol):
    """How a server turns the mean of the clients' model updates into new parameters; see `SERVERS`."""

    name: ClassVar[str]

    def init(self, parameters: Tensor) -> State:
        """The state before the first round.

        Args:
            parameters: The model's parameters `[N]`.

        Returns:
            Tensors by name, empty if the server has no state.
        """

    def step(self, parameters: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The parameters and the state after a round.

        Args:
            parameters: The parameters `[N]` that the clients were sent.
            update: The clients' mean model update `[N]`, old − new parameters.
            state: The state after the round before.

        Returns:
            The new parameters `[N]` and the new state.
        """


@dataclass(frozen=True)
class FedAvg:
    """The average of the clients' models (McMahan et al., "Communication-Efficient Learning", AISTATS 2017).

    Args:
        server_learning_rate: Factor of the mean update; 1 is the plain average.

    >>> FedAvg().step(torch.ones(2), torch.full((2,), 0.25), {})[0].tolist()
    [0.75, 0.75]
    """

    name: ClassVar[str] = "fedavg"

    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        checks.number("server_learning_rate", self.server_learning_rate, 0, above=True)

    def init(self, parameters: Tensor) -> State:
        """The state before the first round: FedAvg has none.

        Args:
            parameters: The model's parameters `[N]`.

        Returns:
            An empty dict.
        """
        return {}

    def step(self, parameters: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The parameters after a round.

        Args:
            parameters: The parameters `[N]` that the clients were sent.
            update: The clients' mean model update `[N]`, old − new parameters.
            state: The state after the round before.

        Returns:
            The new parameters `[N]`, and `state`.
        """
        return parameters - self.server_learning_rate * update, state


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with server momentum (Hsu et al., "Measuring the Effects of Non-Identical Data", 2019).

    Args:
        server_learning_rate: Factor of the momentum.
        server_momentum: Momentum in [0, 1]. Flower's default is 0, which is `FedAvg`.

    >>> FedAvgM(server_momentum=1.5)
    Traceback (most recent call last):
    refiner.errors.SettingError: server_momentum = 1.5: expected a number in [0, 1]
    """

    name: ClassVar[str] = "fedavgm"

    server_learning_rate: float = 1.0
    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        checks.number("server_learning_rate", self.server_learning_rate, 0, above=True)
        checks.number("server_momentum", self.server_momentum, 0, 1)

    def init(self, parameters: Tensor) -> State:
        """The state before the first round.

        Args:
            parameters: The model's parameters `[N]`.

        Returns:
            A momentum of zero, `[N]`.
        """
        return {_MOMENTUM: torch.zeros_like(parameters)}

    def step(self, parameters: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The parameters and the momentum after a round.

        Args:
            parameters: The parameters `[N]` that the clients were sent.
            update: The clients' mean model update `[N]`, old − new parameters.
            state: The state after the round before.

        Returns:
            The new parameters `[N]` and the new momentum.
        """
        momentum = self.server_momentum * state[_MOMENTUM] + update
        return parameters - self.server_learning_rate * momentum, {_MOMENTUM: momentum}


@dataclass(frozen=True)
class FedAdam:
    """Adam on the server (Reddi et al., "Adaptive Federated Optimization", ICLR 2021).

    The moments' bias is corrected in the same way as in Flower.

    Args:
        eta: Server learning rate.
        beta_1: Decay of the first moment, in [0, 1).
        beta_2: Decay of the second moment, in [0, 1).
        tau: Degree of adaptivity. Updates far below it are scaled by eta / tau, larger ones become steps of
            about eta.

    >>> FedAdam(beta_1=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: beta_1 = 1: expected a number in [0, 1)
    """

    name: ClassVar[str] = "fedadam"

    eta: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        checks.number("eta", self.eta, 0, above=True)
        for name, beta in (("beta_1", self.beta_1), ("beta_2", self.beta_2)):
            if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < 1:
                raise checks.wrong(name, beta, "a number in [0, 1)")
        checks.number("tau", self.tau, 0, above=True)

    def init(self, parameters: Tensor) -> State:
        """The state before the first round.

        Args:
            parameters: The model's parameters `[N]`.

        Returns:
            Two moments of zero, `[N]` each, and the number of rounds, 0.
        """
        rounds = torch.zeros((), dtype=torch.float64, device=parameters.device)
        return {
            "first": torch.zeros_like(parameters),
            "second": torch.zeros_like(parameters),
            "rounds": rounds,
        }

    def step(self, parameters: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The parameters and the moments after a round.

        Args:
            parameters: The parameters `[N]` that the clients were sent.
            update: The clients' mean model update `[N]`, old − new parameters.
            state: The state after the round before.

        Returns:
            The new parameters `[N]`, and the new moments and number of rounds.
        """
        first = torch.lerp(update, state["first"], self.beta_1)
        second = torch.lerp(update.square(), state["second"], self.beta_2)
        rounds = state["rounds"] + 1
        # Bias correction, as the moments start at zero. As in Flower the exponent is rounds done + 1.
        eta = self.eta * (1 - self.beta_2 ** (rounds + 1)).sqrt() / (1 - self.beta_1 ** (rounds + 1))
        parameters = parameters - eta * first / (second.sqrt() + self.tau)
        return parameters, {"first": first, "second": second, "rounds": rounds}


SERVERS: dict[str, Callable[..., Server]] = {kind.name: kind for kind in (FedAvg, FedAvgM, FedAdam)}
"""Every server by name."""


def make_server(text: str) -> Server:
    """A server from its name in `SERVERS`, with settings: `fedavgm:server_momentum=0.5`.

    Args:
        text: `NAME` or `NAME:setting=value,setting=value`.

    Returns:
        The server.

    Raises:
        DataError: If the name or a setting is unknown.
        SettingError: If a value lies outside its range.

    >>> make_server("fedprox")
    Traceback (most recent call last):
    refiner.errors.DataError: server = 'fedprox': unknown... Known: fedavg, fedavgm, fedadam
    """
    return make_by_name(SERVERS, "server", text)
