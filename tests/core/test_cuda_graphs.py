"""On a CPU a cached call is a plain call; on a GPU it is replayed, with the right inputs and outputs."""

import pytest
import torch
from torch import Tensor

from refiner.core import Task, gradients
from refiner.core.cuda_graphs import CudaGraphCache, start_on_side_stream
from refiner.core.gradients import graphed_gradients_and_scores
from refiner.models import LeNet

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch.cuda.is_available() is False: CUDA graphs need a GPU"
)


class Counted:
    """A function of tensors that counts how often Python runs it."""

    def __init__(self, factor: float = 2.0) -> None:
        self.calls = 0
        self.factor = factor

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return self.factor * x + y, x * y


def check_outputs(outputs: tuple[Tensor, ...], factor: float, x: Tensor, y: Tensor) -> None:
    assert len(outputs) == 2
    torch.testing.assert_close(outputs[0], factor * x + y)
    torch.testing.assert_close(outputs[1], x * y)


def test_on_a_cpu_every_call_runs_the_function() -> None:
    cache, function = CudaGraphCache(capacity=1), Counted()
    for count in range(1, 6):
        x, y = torch.randn(3), torch.randn(3)
        check_outputs(cache("key", function, [x, y]), 2, x, y)
        assert function.calls == count
    other = Counted(5)
    x, y = torch.randn(3), torch.randn(3)
    check_outputs(cache("key", other, [x, y]), 5, x, y)
    assert other.calls == 1


def test_on_a_cpu_autograd_works_through_a_call() -> None:
    x = torch.ones(3, requires_grad=True)
    out, _ = CudaGraphCache()("key", Counted(), [x, x.detach()])
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_on_a_cpu_an_error_is_raised_and_not_cached() -> None:
    cache = CudaGraphCache()

    def fails(x: Tensor) -> tuple[Tensor]:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            cache("key", fails, [torch.ones(1)])
    x = torch.ones(2)
    check_outputs(cache("key", Counted(), [x, x]), 2, x, x)


def test_on_a_cpu_side_stream_work_runs_at_once_and_once() -> None:
    done: list[int] = []

    def work() -> Tensor:
        done.append(1)
        return torch.ones(2)

    join = start_on_side_stream(work)
    assert done == [1]
    assert join().tolist() == join().tolist() == [1, 1]
    assert done == [1]


@needs_cuda
def test_on_a_gpu_a_call_is_recorded_once_and_replayed() -> None:
    cache, function = CudaGraphCache(), Counted()
    counts = []
    results = []
    for _ in range(5):
        x, y = torch.randn(2, 3, device="cuda")
        results.append((cache("key", function, [x, y]), x, y))
        counts.append(function.calls)
    # Once eager, then two to warm up and one to record, then never again.
    assert counts == [1, 4, 4, 4, 4]
    # Checked only now: a later replay must not overwrite an earlier result.
    for outputs, x, y in results:
        check_outputs(outputs, 2, x, y)


@needs_cuda
def test_on_a_gpu_shapes_dtypes_and_keys_have_their_own_recordings() -> None:
    cache = CudaGraphCache(capacity=8)
    functions = {"double": Counted(2.0), "triple": Counted(3.0)}
    for _ in range(4):
        for key, function in functions.items():
            for size, dtype in ((3, torch.float32), (4, torch.float32), (3, torch.float64)):
                x, y = torch.randn(2, size, device="cuda", dtype=dtype)
                outputs = cache(key, function, [x, y])
                check_outputs(outputs, function.factor, x, y)
                assert outputs[0].shape == (size,) and outputs[0].dtype == dtype
    assert all(function.calls == 3 * 4 for function in functions.values())


@needs_cuda
def test_on_a_gpu_only_the_latest_recordings_are_kept() -> None:
    cache = CudaGraphCache(capacity=2)
    functions = [Counted(float(factor)) for factor in range(3)]
    for _ in range(3):
        for key, function in enumerate(functions):
            x, y = torch.randn(2, 3, device="cuda")
            check_outputs(cache(key, function, [x, y]), function.factor, x, y)
    # Each was dropped before it was called again, so all nine calls were plain ones.
    assert [function.calls for function in functions] == [3, 3, 3]
    assert len(cache._entries) == 2


@needs_cuda
def test_on_a_gpu_an_input_on_the_host_makes_a_plain_call() -> None:
    cache, calls = CudaGraphCache(), 0

    def function(x: Tensor, scale: Tensor) -> tuple[Tensor]:
        nonlocal calls
        calls += 1
        return (x * scale.item(),)

    for factor in (1.0, 2.0, 3.0):
        x = torch.randn(3, device="cuda")
        torch.testing.assert_close(cache("key", function, [x, torch.tensor(factor)])[0], factor * x)
    assert calls == 3


@needs_cuda
def test_on_a_gpu_side_stream_work_is_part_of_the_recording() -> None:
    cache = CudaGraphCache()

    def function(x: Tensor) -> tuple[Tensor]:
        join = start_on_side_stream(x.square)
        return (x.exp() + join(),)

    for _ in range(4):
        x = torch.randn(1000, device="cuda")
        torch.testing.assert_close(cache("key", function, [x])[0], x.exp() + x.square())


@needs_cuda
def test_on_a_gpu_graphed_gradients_use_the_current_parameters() -> None:
    torch.manual_seed(0)
    task = Task(LeNet().cuda(), example=torch.rand(1, 3, 32, 32, device="cuda"))
    for round in range(5):
        x, y = torch.rand(2, 3, 3, 32, 32, device="cuda"), torch.randint(10, (2, 3), device="cuda")
        with torch.no_grad():
            for value in task.model.parameters():
                value.mul_(1 + round / 10)
        expected = gradients(task, x, y)
        for name, value in graphed_gradients_and_scores(task, x, y)[0].items():
            torch.testing.assert_close(value, expected[name])
