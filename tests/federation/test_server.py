"""Servers against torch.optim, which knows nothing of clients; `flower/test_servers.py` has Flower's own."""

import pytest
import torch

from refiner.errors import SettingError
from refiner.federation import SERVERS, FedAdam, FedAvg, FedAvgM, make_server


def walk(server: object, moves: list[torch.Tensor]) -> torch.Tensor:
    values = torch.ones(5, dtype=torch.float64)
    state = server.init(values)  # type: ignore[attr-defined]
    for move in moves:
        values, state = server.step(values, move, state)  # type: ignore[attr-defined]
    return values


@pytest.fixture
def moves() -> list[torch.Tensor]:
    return list(torch.randn(6, 5, dtype=torch.float64))


def reference(
    optimizer: type[torch.optim.Optimizer], moves: list[torch.Tensor], **settings: object
) -> torch.Tensor:
    values = torch.ones(5, dtype=torch.float64, requires_grad=True)
    held = optimizer([values], **settings)
    for move in moves:
        values.grad = move.clone()
        held.step()
    return values.detach()


def test_fedavg_is_descent(moves: list[torch.Tensor]) -> None:
    expected = reference(torch.optim.SGD, moves, lr=0.5)
    torch.testing.assert_close(walk(FedAvg(server_learning_rate=0.5), moves), expected)


def test_fedavgm_is_descent_with_momentum(moves: list[torch.Tensor]) -> None:
    expected = reference(torch.optim.SGD, moves, lr=0.5, momentum=0.8)
    torch.testing.assert_close(walk(FedAvgM(0.5, 0.8), moves), expected)


def test_fedadam_corrects_its_first_steps(moves: list[torch.Tensor]) -> None:
    """As Flower does, against whose own class it is held where that is installed."""
    values, first, second = torch.ones(5, dtype=torch.float64), 0.0, 0.0
    for round, move in enumerate(moves, start=1):
        first, second = 0.7 * first + 0.3 * move, 0.9 * second + 0.1 * move**2
        eta = 0.2 * (1 - 0.9 ** (round + 1)) ** 0.5 / (1 - 0.7 ** (round + 1))
        values = values - eta * first / (second**0.5 + 1e-3)
    torch.testing.assert_close(walk(FedAdam(0.2, 0.7, 0.9, 1e-3), moves), values)


def test_the_moves_of_fedsgd_do_not_become_steps_of_eta() -> None:
    """Moves of 1e-6 are far below tau: a weight goes 1e-4 with each, not 0.1."""
    assert float((walk(FedAdam(), [torch.full((5,), 1e-6, dtype=torch.float64)] * 6) - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("name", SERVERS)
def test_the_type_of_the_weights_stays(name: str) -> None:
    server, values = make_server(name), torch.ones(3)
    values, state = server.step(values, torch.full((3,), 0.1), server.init(values))
    assert values.dtype == torch.float32
    assert state.keys() == server.init(values).keys()


@pytest.mark.parametrize("beta", [1, 1.5, -0.1, True, "0.9"])
@pytest.mark.parametrize("name", ["beta_1", "beta_2"])
def test_a_beta_that_would_divide_by_nothing(name: str, beta: object) -> None:
    with pytest.raises(SettingError) as caught:
        FedAdam(**{name: beta})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} = {beta!r}: expected a number in [0, 1)"


def test_by_name() -> None:
    assert make_server("fedavgm:server_momentum=0.5") == FedAvgM(server_momentum=0.5)
    assert set(SERVERS) == {"fedavg", "fedavgm", "fedadam"}
