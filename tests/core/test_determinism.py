"""The same bits from the same call: switches that are set, put back, and left alone on a CPU."""

from collections.abc import Iterator

import pytest
import torch

from refiner.core.determinism import repeatable
from refiner.errors import UnsupportedModelError

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def switches() -> tuple[bool, bool, bool]:
    return (
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


@pytest.fixture(autouse=True)
def timed() -> Iterator[None]:
    """A user whose speed settings are all on."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.backends.cudnn.benchmark = before
    torch.use_deterministic_algorithms(False)


def test_a_gpu_is_switched_and_switched_back() -> None:
    with repeatable(True, GPU):
        assert switches() == (False, True, False)
        with repeatable(True, GPU):
            assert switches() == (False, True, False)
        assert switches() == (False, True, False)
    assert switches() == (True, True, True)


@pytest.mark.parametrize(("wanted", "device"), [(True, CPU), (False, GPU), (False, CPU)])
def test_else_nothing_happens(wanted: bool, device: torch.device) -> None:
    with repeatable(wanted, device):
        assert switches() == (True, True, True)


def test_what_has_no_such_algorithm_is_one_line() -> None:
    with (
        pytest.raises(UnsupportedModelError, match=r"deterministic = True: put_ has no algorithm") as caught,
        repeatable(True, GPU),
    ):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    assert "\n" not in str(caught.value)
    assert switches() == (True, True, True)


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"), repeatable(True, GPU):
        torch.zeros(3) + torch.zeros(2)
    with pytest.raises(KeyError), repeatable(True, GPU):
        raise KeyError
    assert switches() == (True, True, True)


def test_cublas_that_began_without_its_switch() -> None:
    with pytest.raises(UnsupportedModelError, match="before the first use of the GPU"), repeatable(True, GPU):
        raise RuntimeError("Deterministic behavior was enabled ... set CUBLAS_WORKSPACE_CONFIG=:4096:8 ...")
