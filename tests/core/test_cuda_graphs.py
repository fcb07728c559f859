"""On a CPU a captured call is a plain call; on a GPU it is replayed and never mixes up what it replays."""

import pytest
import torch
from torch import Tensor

from refiner.core import Task, gradients
from refiner.core.cuda_graphs import Captured, beside
from refiner.core.gradients import replayed
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


def expect(found: tuple[Tensor, ...], factor: float, x: Tensor, y: Tensor) -> None:
    assert len(found) == 2
    torch.testing.assert_close(found[0], factor * x + y)
    torch.testing.assert_close(found[1], x * y)


def test_on_a_cpu_it_simply_calls() -> None:
    captured, function = Captured(capacity=1), Counted()
    for count in range(1, 6):
        x, y = torch.randn(3), torch.randn(3)
        expect(captured("key", function, [x, y]), 2, x, y)
        assert function.calls == count
    other = Counted(5)
    x, y = torch.randn(3), torch.randn(3)
    expect(captured("key", other, [x, y]), 5, x, y)
    assert other.calls == 1


def test_on_a_cpu_a_graph_for_autograd_stays() -> None:
    x = torch.ones(3, requires_grad=True)
    out, _ = Captured()("key", Counted(), [x, x.detach()])
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_on_a_cpu_an_error_comes_through_and_is_not_remembered() -> None:
    captured = Captured()

    def fails(x: Tensor) -> tuple[Tensor]:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            captured("key", fails, [torch.ones(1)])
    x = torch.ones(2)
    expect(captured("key", Counted(), [x, x]), 2, x, x)


def test_on_a_cpu_work_beside_is_done_at_once_and_only_once() -> None:
    done: list[int] = []

    def work() -> Tensor:
        done.append(1)
        return torch.ones(2)

    join = beside(work)
    assert done == [1]
    assert join().tolist() == join().tolist() == [1, 1]
    assert done == [1]


@needs_cuda
def test_on_a_gpu_it_is_recorded_once_and_replayed() -> None:
    captured, function = Captured(), Counted()
    counts = []
    results = []
    for _ in range(5):
        x, y = torch.randn(2, 3, device="cuda")
        results.append((captured("key", function, [x, y]), x, y))
        counts.append(function.calls)
    # Once eager, then two to warm up and one to record, then never again.
    assert counts == [1, 4, 4, 4, 4]
    # Looked at only now: an earlier result must not be overwritten by a later replay.
    for found, x, y in results:
        expect(found, 2, x, y)


@needs_cuda
def test_on_a_gpu_shapes_types_and_keys_are_kept_apart() -> None:
    captured = Captured(capacity=8)
    functions = {"double": Counted(2.0), "triple": Counted(3.0)}
    for _ in range(4):
        for key, function in functions.items():
            for size, dtype in ((3, torch.float32), (4, torch.float32), (3, torch.float64)):
                x, y = torch.randn(2, size, device="cuda", dtype=dtype)
                found = captured(key, function, [x, y])
                expect(found, function.factor, x, y)
                assert found[0].shape == (size,) and found[0].dtype == dtype
    assert all(function.calls == 3 * 4 for function in functions.values())


@needs_cuda
def test_on_a_gpu_only_the_last_recordings_are_kept() -> None:
    captured = Captured(capacity=2)
    functions = [Counted(float(factor)) for factor in range(3)]
    for _ in range(3):
        for key, function in enumerate(functions):
            x, y = torch.randn(2, 3, device="cuda")
            expect(captured(key, function, [x, y]), function.factor, x, y)
    # Each was forgotten before it came back, so all nine calls were plain ones.
    assert [function.calls for function in functions] == [3, 3, 3]
    assert len(captured._seen) == 2


@needs_cuda
def test_on_a_gpu_a_tensor_on_the_host_means_a_plain_call() -> None:
    captured, calls = Captured(), 0

    def function(x: Tensor, scale: Tensor) -> tuple[Tensor]:
        nonlocal calls
        calls += 1
        return (x * scale.item(),)

    for factor in (1.0, 2.0, 3.0):
        x = torch.randn(3, device="cuda")
        torch.testing.assert_close(captured("key", function, [x, torch.tensor(factor)])[0], factor * x)
    assert calls == 3


@needs_cuda
def test_on_a_gpu_work_beside_joins_the_recording() -> None:
    captured = Captured()

    def function(x: Tensor) -> tuple[Tensor]:
        join = beside(x.square)
        return (x.exp() + join(),)

    for _ in range(4):
        x = torch.randn(1000, device="cuda")
        torch.testing.assert_close(captured("key", function, [x])[0], x.exp() + x.square())


@needs_cuda
def test_on_a_gpu_replayed_gradients_follow_the_model() -> None:
    torch.manual_seed(0)
    task = Task(LeNet().cuda(), example=torch.rand(1, 3, 32, 32, device="cuda"))
    for round in range(5):
        x, y = torch.rand(2, 3, 3, 32, 32, device="cuda"), torch.randint(10, (2, 3), device="cuda")
        with torch.no_grad():
            for value in task.model.parameters():
                value.mul_(1 + round / 10)
        expected = gradients(task, x, y)
        for name, found in replayed(task, x, y).items():
            torch.testing.assert_close(found, expected[name])
