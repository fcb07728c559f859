"""Deterministic algorithms: PyTorch's switches are set and restored, and unchanged on a CPU."""

from collections.abc import Iterator

import pytest
import torch

from refiner.core.determinism import deterministic_algorithms
from refiner.errors import UnsupportedModelError

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def switches() -> tuple[bool, bool, bool]:
    return (
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


@pytest.fixture(autouse=True)
def fast_settings() -> Iterator[None]:
    """A user whose speed settings are all on."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.backends.cudnn.benchmark = before
    torch.use_deterministic_algorithms(False)


def test_switches_are_set_and_restored() -> None:
    with deterministic_algorithms(True, GPU):
        assert switches() == (False, True, False)
        with deterministic_algorithms(True, GPU):
            assert switches() == (False, True, False)
        assert switches() == (False, True, False)
    assert switches() == (True, True, True)


@pytest.mark.parametrize(("enabled", "device"), [(True, CPU), (False, GPU), (False, CPU)])
def test_otherwise_nothing_changes(enabled: bool, device: torch.device) -> None:
    with deterministic_algorithms(enabled, device):
        assert switches() == (True, True, True)


def test_an_operation_without_a_deterministic_algorithm_is_a_one_line_error() -> None:
    with (
        pytest.raises(
            UnsupportedModelError, match=r"deterministic = True: put_ has no deterministic algorithm"
        ) as caught,
        deterministic_algorithms(True, GPU),
    ):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    assert "\n" not in str(caught.value)
    assert switches() == (True, True, True)


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"), deterministic_algorithms(True, GPU):
        torch.zeros(3) + torch.zeros(2)
    with pytest.raises(KeyError), deterministic_algorithms(True, GPU):
        raise KeyError
    assert switches() == (True, True, True)


def test_cublas_used_before_the_switch_is_an_error() -> None:
    with (
        pytest.raises(UnsupportedModelError, match="before the first use of the GPU"),
        deterministic_algorithms(True, GPU),
    ):
        raise RuntimeError("Deterministic behavior was enabled ... set CUBLAS_WORKSPACE_CONFIG=:4096:8 ...")
