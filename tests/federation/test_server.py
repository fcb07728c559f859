"""Servers against torch.optim; `flower/test_servers_match_flower.py` compares them with Flower's."""

import pytest
import torch

from refiner.errors import SettingError
from refiner.federation import SERVERS, FedAdam, FedAvg, FedAvgM, Server, make_server


def parameters_after(server: Server, updates: list[torch.Tensor]) -> torch.Tensor:
    parameters = torch.ones(5, dtype=torch.float64)
    state = server.init(parameters)
    for update in updates:
        parameters, state = server.step(parameters, update, state)
    return parameters


@pytest.fixture
def updates() -> list[torch.Tensor]:
    return list(torch.randn(6, 5, dtype=torch.float64))


def torch_parameters_after(
    optimizer: type[torch.optim.Optimizer], updates: list[torch.Tensor], **settings: object
) -> torch.Tensor:
    parameters = torch.ones(5, dtype=torch.float64, requires_grad=True)
    reference = optimizer([parameters], **settings)
    for update in updates:
        parameters.grad = update.clone()
        reference.step()
    return parameters.detach()


def test_fedavg_equals_sgd_on_the_updates(updates: list[torch.Tensor]) -> None:
    expected = torch_parameters_after(torch.optim.SGD, updates, lr=0.5)
    torch.testing.assert_close(parameters_after(FedAvg(server_learning_rate=0.5), updates), expected)


def test_fedavgm_equals_sgd_with_momentum(updates: list[torch.Tensor]) -> None:
    expected = torch_parameters_after(torch.optim.SGD, updates, lr=0.5, momentum=0.8)
    torch.testing.assert_close(parameters_after(FedAvgM(0.5, 0.8), updates), expected)


def test_fedadam_corrects_the_bias_of_its_moments(updates: list[torch.Tensor]) -> None:
    """By the formula of Flower's strategy."""
    expected, first, second = torch.ones(5, dtype=torch.float64), 0.0, 0.0
    for round, update in enumerate(updates, start=1):
        first, second = 0.7 * first + 0.3 * update, 0.9 * second + 0.1 * update**2
        eta = 0.2 * (1 - 0.9 ** (round + 1)) ** 0.5 / (1 - 0.7 ** (round + 1))
        expected = expected - eta * first / (second**0.5 + 1e-3)
    torch.testing.assert_close(parameters_after(FedAdam(0.2, 0.7, 0.9, 1e-3), updates), expected)


def test_fedadam_does_not_turn_small_updates_into_steps_of_eta() -> None:
    """Updates of 1e-6 are far below tau: each changes a weight by 1e-4, not by eta = 0.1."""
    small = [torch.full((5,), 1e-6, dtype=torch.float64)] * 6
    assert float((parameters_after(FedAdam(), small) - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("name", SERVERS)
def test_a_step_keeps_the_dtype_and_the_names_of_the_state(name: str) -> None:
    server, parameters = make_server(name), torch.ones(3)
    parameters, state = server.step(parameters, torch.full((3,), 0.1), server.init(parameters))
    assert parameters.dtype == torch.float32
    assert state.keys() == server.init(parameters).keys()


@pytest.mark.parametrize("beta", [1, 1.5, -0.1, True, "0.9"])
@pytest.mark.parametrize("name", ["beta_1", "beta_2"])
def test_a_beta_outside_its_range_raises(name: str, beta: object) -> None:
    with pytest.raises(SettingError) as caught:
        FedAdam(**{name: beta})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} = {beta!r}: expected a number in [0, 1)"


def test_a_server_is_made_from_its_name_and_settings() -> None:
    assert make_server("fedavgm:server_momentum=0.5") == FedAvgM(server_momentum=0.5)
    assert set(SERVERS) == {"fedavg", "fedavgm", "fedadam"}
