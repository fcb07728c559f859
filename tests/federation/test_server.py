"""Servers against torch.optim, which knows nothing of clients."""

import pytest
import torch

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


def test_fedadam_is_adam_without_its_correction(moves: list[torch.Tensor]) -> None:
    values, first, second = torch.ones(5, dtype=torch.float64), 0.0, 0.0
    for move in moves:
        first, second = 0.7 * first + 0.3 * move, 0.9 * second + 0.1 * move**2
        values = values - 0.2 * first / (second**0.5 + 1e-3)
    torch.testing.assert_close(walk(FedAdam(0.2, 0.7, 0.9, 1e-3), moves), values)


def test_by_name() -> None:
    assert make_server("fedavgm:server_momentum=0.5") == FedAvgM(server_momentum=0.5)
    assert set(SERVERS) == {"fedavg", "fedavgm", "fedadam"}
