"""Victim-batched gradients against a plain loop, and their derivatives against finite differences."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from refiner.core import convolution
from refiner.core.gradients import flatten, gradients, gradients_jvp
from refiner.core.task import Task
from refiner.defenses.none import NoDefense
from refiner.errors import DataError, SettingError
from refiner.models import MODELS, LeNet, make_model, resnet

V = 2
# A sixteenth of the real widths, in groups of the same size: validating 21 million parameters takes seconds.
WIDTHS = (4, 8, 16, 32)
GROUPS = 2
# Smooth activations: finite differences across a kink of ReLU would be wrong themselves. The last stage of a
# ResNet sees one pixel here, so batch norm needs more samples; without it samples are independent.
CASES: dict[str, tuple[str, int, dict[str, object]]] = {
    "lenet": ("lenet", 2, {"activation": "gelu"}),
    "mlp": ("mlp", 2, {"activation": "gelu"}),
    "resnet10-group": ("resnet10", 2, {"activation": "tanh", "groups": GROUPS}),
    "resnet10-batch": ("resnet10", 6, {"activation": "gelu", "norm": "batch", "groups": GROUPS}),
    "resnet18": ("resnet18", 1, {"activation": "gelu", "groups": GROUPS}),
    "resnet34": ("resnet34", 1, {"activation": "gelu", "groups": GROUPS}),
    "vit": ("vit", 2, {"width": 32, "depth": 2, "heads": 2}),
}

Case = tuple[Task, Tensor, Tensor]


class Transformer(nn.Module):
    """PyTorch's own attention, which has a fast path without gradients and fused kernels with them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Tied(nn.Module):
    """One weight in two layers, the first of which to run is the last to be registered."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.first.weight = self.second.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).tanh()).tanh())


class Normalised(nn.Module):
    """A convolution, both norms of the ResNets, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.batch(self.conv(x)).tanh()
        return self.head((hidden + self.group(hidden)).tanh().mean((2, 3)))


OTHER_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (Transformer, (5, 4)),
    "tied": (Tied, (4,)),
    "normalised": (Normalised, (2, 6, 6)),
}


def victims(model: nn.Module, shape: tuple[int, ...], samples: int = 2) -> Case:
    x, y = torch.randn(V, samples, *shape, dtype=torch.float64), torch.randint(3, (V, samples))
    return Task(model, example=x[0, :2]), x, y


ALL_MODELS = [*CASES, *OTHER_MODELS]
# One test of each order is enough for ResNets: "normalised" consists of the same modules.
SMALL_MODELS = [name for name in ALL_MODELS if not name.startswith("resnet")]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Each model once for all tests: validating a deep one takes seconds."""
    torch.manual_seed(0)
    if request.param in OTHER_MODELS:
        make, shape = OTHER_MODELS[request.param]
        yield victims(make().double(), shape)
    else:
        name, samples, chosen = CASES[request.param]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resnet, "WIDTHS", WIDTHS)
            model = make_model(name, 3, (3, 8, 8), **chosen).double()
        yield victims(model, (3, 8, 8), samples)


def loop(task: Task, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """The gradient of each victim by plain autograd, as in a training loop without dropout."""
    model = copy.deepcopy(task.model).eval()
    for module in model.modules():
        module.training = isinstance(module, nn.BatchNorm2d)
    result = []
    for data, labels in zip(x, y, strict=True):
        model.zero_grad()
        cross_entropy(model(data), labels).backward()
        result.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    return result


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def difference(function: Callable[[float], Tensor], step: float = 1e-5) -> Tensor:
    """Derivative at 0 by a central difference."""
    return (function(step) - function(-step)) / (2 * step)


def test_every_model_is_tested() -> None:
    assert {name for name, _, _ in CASES.values()} == set(MODELS)


def assert_equal_to_a_loop(task: Task, x: Tensor, y: Tensor) -> None:
    batched = gradients(task, x, y)
    assert tuple(batched) == task.names
    for victim, reference in enumerate(loop(task, x, y)):
        total = torch.stack([value.norm() for value in reference.values()]).norm()
        for name in task.names:
            # Some are zero except for rounding, such as the gradient of a bias before softmax.
            size = reference[name].norm() + 1e-3 * total
            assert (batched[name][victim] - reference[name]).norm() < 1e-9 * size, name


@pytest.mark.parametrize("case", ALL_MODELS, indirect=True)
def test_batched_gradients_equal_a_loop(case: Case) -> None:
    assert_equal_to_a_loop(*case)


@pytest.mark.parametrize(
    ("case", "chunk"), [("lenet", 1), *((name, None) for name in SMALL_MODELS)], indirect=["case"]
)
def test_each_victim_can_have_its_own_model(case: Case, chunk: int | None) -> None:
    task, x, y = case
    shared = torch.cat([value.flatten() for value in task.parameters().values()])
    models = torch.stack([shared, shared + 0.1 * torch.randn_like(shared)])
    point, tangent = x.clone().requires_grad_(), torch.randn_like(x)
    batched = gradients(task.with_models(models), point, y, chunk=chunk)
    (second,) = torch.autograd.grad(flatten(batched).square().sum(), point)
    derivative = flatten(gradients_jvp(task.with_models(models), x, y, tangent))
    for victim, row in enumerate(models):
        parameters = {name: value[0] for name, value in task.unflatten(row[None]).items()}
        one = slice(victim, victim + 1)
        single = point.detach()[one].clone().requires_grad_()
        expected = gradients(task, single, y[one], parameters=parameters)
        assert error(flatten(batched).detach()[victim], flatten(expected).detach()[0]) < 1e-9
        assert error(second[one], torch.autograd.grad(flatten(expected).square().sum(), single)[0]) < 1e-9
        expected_jvp = gradients_jvp(task, x[one], y[one], tangent[one], parameters=parameters)
        assert error(derivative[victim], flatten(expected_jvp)[0]) < 1e-9


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_batched_gradients_equal_a_loop_with_other_activations(activation: str) -> None:
    assert_equal_to_a_loop(*victims(LeNet(3, (3, 8, 8), activation=activation).double(), (3, 8, 8)))


@pytest.mark.parametrize("case", [name for name in ALL_MODELS if name != "resnet18"], indirect=True)
def test_second_derivatives_equal_finite_differences(case: Case) -> None:
    assert_second_order(*case)


@pytest.mark.parametrize("case", SMALL_MODELS, indirect=True)
def test_second_derivatives_of_one_victim_equal_finite_differences(case: Case) -> None:
    """One victim is computed without vmap, several with it."""
    task, x, y = case
    assert_second_order(task, x[:1], y[:1])


def assert_second_order(task: Task, x: Tensor, y: Tensor) -> None:
    def scalar(data: Tensor) -> Tensor:
        values = gradients(task, data, y).values()
        return torch.stack([k * g.square().sum() + g.sum() for k, g in enumerate(values, start=1)]).sum()

    point = x.clone().requires_grad_()
    (second,) = torch.autograd.grad(scalar(point), point)
    assert second.shape == x.shape
    direction = torch.randn_like(x)
    expected = difference(lambda step: scalar(x + step * direction))
    assert abs(float((second * direction).sum() / expected) - 1) < 1e-6


@pytest.mark.parametrize("case", SMALL_MODELS, indirect=True)
def test_gradients_jvp_equals_finite_differences(case: Case) -> None:
    task, x, y = case
    tangent = torch.randn_like(x)
    derivative = gradients_jvp(task, x, y, tangent)
    assert tuple(derivative) == task.names
    expected = difference(lambda step: flatten(gradients(task, x + step * tangent, y)))
    for victim in range(V):
        assert error(flatten(derivative)[victim], expected[victim]) < 1e-6


def test_gradients_jvp_of_one_victim_equals_that_of_a_batch(tasks: dict[torch.dtype, Task]) -> None:
    task, x, y = (
        tasks[torch.float64],
        torch.rand(2, 2, 1, 8, 8, dtype=torch.float64),
        torch.randint(3, (2, 2)),
    )
    tangent = torch.randn_like(x)
    both = flatten(gradients_jvp(task, x, y, tangent))
    alone = flatten(gradients_jvp(task, x[1:], y[1:], tangent[1:]))
    assert error(alone[0], both[1]) < 1e-9


def small_task(dtype: torch.dtype) -> Task:
    torch.manual_seed(0)
    return Task(LeNet(3, (1, 8, 8)).to(dtype), example=torch.rand(2, 1, 8, 8, dtype=dtype))


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


@pytest.fixture(scope="module")
def tasks() -> dict[torch.dtype, Task]:
    return {dtype: small_task(dtype) for dtype in TOLERANCE}


@settings(max_examples=4)
@example(count=1, chunk=1, samples=1, seed=0)
@example(count=7, chunk=3, samples=2, seed=0)
@given(
    count=st.integers(1, 7), chunk=st.integers(1, 9), samples=st.integers(1, 3), seed=st.integers(0, 2**31)
)
def test_chunks_change_only_rounding(
    tasks: dict[torch.dtype, Task], count: int, chunk: int, samples: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(count, samples, 1, 8, 8, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (count, samples), generator=draw)
    for dtype, bound in TOLERANCE.items():
        first, second = (x.to(dtype).requires_grad_() for _ in range(2))
        whole = flatten(gradients(tasks[dtype], first, y))
        chunked = flatten(gradients(tasks[dtype], second, y, chunk=chunk))
        assert (whole - chunked).norm(dim=1).le(bound * whole.norm(dim=1)).all()
        (a,) = torch.autograd.grad(whole.square().sum(), first)
        (b,) = torch.autograd.grad(chunked.square().sum(), second)
        assert (a - b).flatten(1).norm(dim=1).le(10 * bound * a.flatten(1).norm(dim=1)).all()


def test_victims_do_not_influence_each_other(tasks: dict[torch.dtype, Task]) -> None:
    x, y = torch.rand(3, 2, 1, 8, 8, dtype=torch.float64), torch.randint(3, (3, 2))
    before = gradients(tasks[torch.float64], x, y)
    x[1] = 100 * torch.randn_like(x[1])
    after = gradients(tasks[torch.float64], x, y)
    for name, value in after.items():
        torch.testing.assert_close(value[::2], before[name][::2], rtol=1e-9, atol=1e-12)
        assert not torch.allclose(value[1], before[name][1])


def test_a_graph_is_recorded_only_if_x_requires_a_gradient(tasks: dict[torch.dtype, Task]) -> None:
    task, x, y = tasks[torch.float32], torch.rand(2, 1, 1, 8, 8), torch.zeros(2, 1, dtype=torch.long)
    for count in (1, 2):
        plain = gradients(task, x[:count], y[:count])
        recorded = gradients(task, x[:count].clone().requires_grad_(), y[:count])
        with torch.no_grad():
            without_grad = gradients(task, x[:count].clone().requires_grad_(), y[:count])
        assert not any(g.requires_grad for g in plain.values())
        assert all(g.requires_grad for g in recorded.values())
        assert not any(g.requires_grad for g in without_grad.values())
        assert all(torch.equal(plain[name], without_grad[name]) for name in task.names)
    derivative = gradients_jvp(task, x.clone().requires_grad_(), y, torch.ones_like(x))
    assert not any(g.requires_grad for g in derivative.values())


def test_given_parameters_replace_those_of_the_model(tasks: dict[torch.dtype, Task]) -> None:
    task, x, y = (
        tasks[torch.float64],
        torch.rand(2, 2, 1, 8, 8, dtype=torch.float64),
        torch.randint(3, (2, 2)),
    )
    changed = {name: 1.5 * value for name, value in task.parameters().items()}
    other = copy.deepcopy(task.model)
    other.load_state_dict(changed)
    expected = flatten(gradients(Task(other, example=x[0]), x, y))
    assert error(flatten(gradients(task, x, y, parameters=changed)), expected) < 1e-9
    assert error(flatten(gradients(task, x, y)), expected) > 1e-3
    derivative = flatten(gradients_jvp(Task(other, example=x[0]), x, y, x))
    assert error(flatten(gradients_jvp(task, x, y, x, parameters=changed)), derivative) < 1e-9
    assert error(flatten(gradients_jvp(task, x, y, x)), derivative) > 1e-3


@settings(max_examples=20)
@given(count=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_unflatten_is_the_inverse_of_flatten(tasks: dict[torch.dtype, Task], count: int, seed: int) -> None:
    task = tasks[torch.float32]
    flat = torch.randn(count, task.size, generator=torch.Generator().manual_seed(seed))
    named = task.unflatten(flat)
    assert tuple(named) == task.names
    assert all(value.shape == (count, *task.shapes[name]) for name, value in named.items())
    assert torch.equal(flatten(named), flat)
    again = task.unflatten(flatten(named))
    assert all(torch.equal(again[name], value) for name, value in named.items())


class WithTemperature(nn.Module):
    """Has a parameter without axes, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.tanh()) * self.temperature + self.empty.sum()


@pytest.mark.parametrize("count", [1, 3])
def test_parameters_without_axes_or_elements_work(count: int) -> None:
    task = Task(WithTemperature(), example=torch.randn(2, 4))
    x, y = torch.randn(count, 2, 4), torch.randint(3, (count, 2))
    gradient = gradients(task, x, y)
    assert gradient["temperature"].shape == (count,)
    assert gradient["temperature"].all()
    flat = flatten(gradient)
    assert flat.shape == (count, task.size)
    assert all(torch.equal(value, gradient[name]) for name, value in task.unflatten(flat).items())
    assert torch.equal(NoDefense().protect(task, x, y).flat(), flat)


class Idle(nn.Module):
    """One parameter and one layer that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2, 2))
        self.linear = nn.Linear(4, 3)
        self.idle = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.tanh())


@pytest.mark.parametrize("count", [1, 3])
def test_unused_parameters_get_zero_gradients(count: int) -> None:
    task = Task(Idle(), example=torch.randn(2, 4))
    x, y = torch.randn(count, 2, 4), torch.randint(3, (count, 2))
    point = x.clone().requires_grad_()
    gradient = gradients(task, point, y)
    derivative = gradients_jvp(task, x, y, x)
    for name in ("unused", "idle.weight", "idle.bias"):
        for mapping in (gradient, derivative):
            assert mapping[name].shape == (count, *task.shapes[name])
            assert not mapping[name].any()
    assert gradient["linear.weight"].any() and derivative["linear.weight"].any()
    (second,) = torch.autograd.grad(flatten(gradient).square().sum(), point)
    assert second.any()


@pytest.mark.parametrize("count", [1, 3])
def test_backward_computes_no_second_derivatives_in_the_parameters(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(LeNet(), example=torch.rand(2, 3, 32, 32))
    point = torch.rand(count, 2, 3, 32, 32, requires_grad=True)
    gradient = flatten(gradients(task, point, torch.zeros(count, 2, dtype=torch.long)))
    maps: list[str] = []

    def forward(
        function: convolution.BilinearMap, a: Tensor, b: Tensor, geometry: convolution.Geometry
    ) -> Tensor:
        maps.append(function.__name__)
        return function(a, b, geometry)

    monkeypatch.setattr(convolution._Bilinear, "forward", staticmethod(forward))
    torch.autograd.grad(gradient, point, torch.ones_like(gradient))
    # Four maps per layer; the first layer has none before it.
    assert sorted(maps) == ["conv_input_grad"] * 6 + ["conv_output"] * 5


X, Y = torch.rand(3, 2, 1, 8, 8), torch.zeros(3, 2, dtype=torch.long)
INPUTS = "expected dense floating-point inputs [V, B, 1, 8, 8], V and B ≥ 1"
LABELS = "expected dense torch.int64 labels [3, 2] or floating-point values [3, 2, 3]"
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "a list": ({"x": [1]}, f"x = list: {INPUTS}"),
    "an axis too few": ({"x": X[0]}, f"x = torch.float32 [2, 1, 8, 8]: {INPUTS}"),
    "another size": ({"x": X[..., :7]}, f"x = torch.float32 [3, 2, 1, 8, 7]: {INPUTS}"),
    "no victims": ({"x": X[:0], "y": Y[:0]}, f"x = torch.float32 [0, 2, 1, 8, 8]: {INPUTS}"),
    "no samples": ({"x": X[:, :0], "y": Y[:, :0]}, f"x = torch.float32 [3, 0, 1, 8, 8]: {INPUTS}"),
    "bytes": ({"x": X.byte()}, f"x = torch.uint8 [3, 2, 1, 8, 8]: {INPUTS}"),
    "sparse": ({"x": X.to_sparse()}, f"x = torch.sparse_coo torch.float32 [3, 2, 1, 8, 8]: {INPUTS}"),
    "labels in a list": ({"y": [1]}, f"y = list: {LABELS}"),
    "fewer labels than victims": ({"y": Y[:2]}, f"y = torch.int64 [2, 2]: {LABELS}"),
    "fewer labels than samples": ({"y": Y[:, :1]}, f"y = torch.int64 [3, 1]: {LABELS}"),
    "labels as floats": ({"y": Y.float()}, f"y = torch.float32 [3, 2]: {LABELS}"),
    "too many probabilities": ({"y": torch.rand(3, 2, 4)}, f"y = torch.float32 [3, 2, 4]: {LABELS}"),
    "x elsewhere": (
        {"x": X.to("meta")},
        "x on meta, y on cpu: expected both on the parameters' device, cpu",
    ),
    "y elsewhere": (
        {"y": Y.to("meta")},
        "x on cpu, y on meta: expected both on the parameters' device, cpu",
    ),
    "another dtype": ({"x": X.double()}, "x of torch.float64: expected the parameters' dtype, torch.float32"),
    "no task": (
        {"task": nn.Linear(2, 2)},
        "task = Linear: expected a Task; make one with Task(model, example=x)",
    ),
    "no mapping": ({"parameters": [1]}, "parameters = list: expected tensors by name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_a_one_line_error(tasks: dict[torch.dtype, Task], name: str) -> None:
    changed, message = WRONG[name]
    arguments: dict[str, Any] = {"task": tasks[torch.float32], "x": X, "y": Y, "parameters": None, **changed}
    with pytest.raises(DataError) as caught:
        gradients(arguments["task"], arguments["x"], arguments["y"], parameters=arguments["parameters"])
    assert str(caught.value) == message


def test_a_wrong_number_of_models_is_an_error(tasks: dict[torch.dtype, Task]) -> None:
    task = tasks[torch.float32]
    with pytest.raises(DataError) as caught:
        gradients(task.with_models(torch.zeros(2, task.size)), X, Y)
    assert str(caught.value) == "parameters of 2 models: expected one for each of 3 victims"
    wrong: Any
    for wrong, shown in ((torch.zeros(2, 5), "torch.float32 [2, 5]"), ([0.0], "list")):
        with pytest.raises(DataError) as caught:
            task.with_models(wrong)
        assert str(caught.value) == f"models = {shown}: expected dense [V, {task.size}]"


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True, "2"])
def test_a_wrong_chunk_is_an_error(tasks: dict[torch.dtype, Task], chunk: int) -> None:
    with pytest.raises(SettingError) as caught:
        gradients(tasks[torch.float32], X, Y, chunk=chunk)
    assert str(caught.value) == f"chunk = {chunk!r}: expected an integer ≥ 1"


@pytest.mark.parametrize("count", [1, 3])
def test_missing_parameters_are_named(tasks: dict[torch.dtype, Task], count: int) -> None:
    task = tasks[torch.float32]
    whole = task.parameters()
    few = {name: value for name, value in whole.items() if not name.startswith("head.")}
    first = task.names[0]
    for parameters, missing in (
        ({}, f"{first} and {len(whole) - 1} more"),
        (few, "head.weight and 1 more"),
        ({**few, "head.weight": whole["head.weight"]}, "head.bias"),
    ):
        with pytest.raises(DataError) as caught:
            gradients(task, X[:count], Y[:count], parameters=parameters)
        assert str(caught.value) == f"parameters: without {missing}, expected all {len(whole)} of the task"


def test_labels_can_be_probabilities(tasks: dict[torch.dtype, Task]) -> None:
    one_hot = nn.functional.one_hot(Y, 3).float()
    gradient = flatten(gradients(tasks[torch.float32], X, one_hot))
    assert error(gradient, flatten(gradients(tasks[torch.float32], X, Y))) < 1e-5


def test_gradients_work_under_function_transforms() -> None:
    x = X.double()
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double(), example=x[0])

    def flat(data: Tensor) -> Tensor:
        return flatten(gradients(task, data, Y, parameters=task.parameters()))

    def squared_norm(data: Tensor) -> Tensor:
        return flat(data).square().sum()

    mapped = torch.func.vmap(flat)(torch.stack([x, 1 - x]))
    assert error(mapped, torch.stack([flat(x), flat(1 - x)])) < 1e-9
    second = torch.func.grad(squared_norm)(x)
    derivative = torch.func.jvp(squared_norm, (x,), (torch.ones_like(x),))[1]
    assert abs(float(second.sum() / derivative) - 1) < 1e-6


class NoHostReads(TorchDispatchMode):
    """Fails on every operation that brings a value to the host, as recording a CUDA graph would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_read_no_value_on_the_host(tasks: dict[torch.dtype, Task], count: int) -> None:
    task = tasks[torch.float32]
    with NoHostReads():
        gradient = gradients(task, X[:count], Y[:count], parameters=task.parameters(), chunk=2)
    assert tuple(gradient) == task.names


WRONG_VALUES: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "another shape": (lambda p: p[:2], "head.bias = torch.float32 [2]: expected dense [3]"),
    "an axis more": (lambda p: p[None], "head.bias = torch.float32 [1, 3]: expected dense [3]"),
    "a list": (lambda p: p.tolist(), "head.bias = list: expected dense [3]"),
    "nothing": (lambda p: None, "head.bias = NoneType: expected dense [3]"),
    "sparse": (lambda p: p.to_sparse(), "head.bias = torch.sparse_coo torch.float32 [3]: expected dense [3]"),
    "integers": (lambda p: p.long(), "head.bias of torch.int64: expected torch.float32"),
    "another dtype": (lambda p: p.double(), "head.bias of torch.float64: expected torch.float32"),
    "elsewhere": (lambda p: p.to("meta"), "head.bias on meta: expected cpu"),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_parameter_is_named(tasks: dict[torch.dtype, Task], name: str, count: int) -> None:
    change, message = WRONG_VALUES[name]
    whole = tasks[torch.float32].parameters()
    wrong: Any = {**whole, "head.bias": change(whole["head.bias"])}
    with pytest.raises(DataError) as caught:
        gradients(tasks[torch.float32], X[:count], Y[:count], parameters=wrong)
    assert str(caught.value) == f"parameters: {message}"


WRONG_TANGENTS: dict[str, Callable[[Tensor], Any]] = {
    "no tensor": lambda t: t.tolist(),
    "of other samples": lambda t: t[:, :1],
    "of another dtype": lambda t: t.double(),
    "sparse": lambda t: t.to_sparse(),
}


@pytest.mark.parametrize("name", WRONG_TANGENTS)
def test_a_wrong_tangent_is_named(tasks: dict[torch.dtype, Task], name: str) -> None:
    with pytest.raises(DataError, match=r"^tangent = .*: expected dense torch.float32 \[3, .*\], as x$"):
        gradients_jvp(tasks[torch.float32], X, Y, WRONG_TANGENTS[name](torch.ones_like(X)))


def test_gradients_jvp_checks_its_inputs_as_gradients_does(tasks: dict[torch.dtype, Task]) -> None:
    task = tasks[torch.float32]
    part = {name: value for name, value in task.parameters().items() if name != "head.bias"}
    with pytest.raises(DataError, match=r"without head\.bias"):
        gradients_jvp(task, X, Y, torch.ones_like(X), parameters=part)
    with pytest.raises(DataError, match=r"^y = "):
        gradients_jvp(task, X, Y[:, :1], torch.ones_like(X))


def test_a_wrong_first_parameter_is_named(tasks: dict[torch.dtype, Task]) -> None:
    task = tasks[torch.float32]
    whole, first = task.parameters(), task.names[0]
    shape = list(task.shapes[first])
    wrong: Any
    for wrong, shown in ((None, "NoneType"), (whole[first][:1], f"torch.float32 {[1, *shape[1:]]}")):
        with pytest.raises(DataError) as caught:
            gradients(task, X, Y, parameters={**whole, first: wrong})
        assert str(caught.value) == f"parameters: {first} = {shown}: expected dense {shape} or [V, *{shape}]"
    with pytest.raises(DataError) as caught:
        gradients(task, X, Y, parameters={name: value.long() for name, value in whole.items()})
    assert str(caught.value) == f"parameters: {first} of torch.int64: expected torch.float32"


def test_a_wrong_parameter_per_victim_is_named(tasks: dict[torch.dtype, Task]) -> None:
    task = tasks[torch.float32]
    per_victim = task.unflatten(torch.rand(3, task.size))
    assert tuple(gradients(task, X, Y, parameters=per_victim)) == task.names
    for wrong, shown in ((per_victim["head.bias"][0], [3]), (per_victim["head.bias"][:2], [2, 3])):
        with pytest.raises(DataError) as caught:
            gradients(task, X, Y, parameters={**per_victim, "head.bias": wrong})
        assert str(caught.value) == f"parameters: head.bias = torch.float32 {shown}: expected dense [3, 3]"


class Mixed(nn.Module):
    """Its head is in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).tanh().double())


def test_a_model_of_two_precisions_accepts_its_own_parameters() -> None:
    task = Task(Mixed(), example=torch.randn(2, 4))
    x, y = torch.randn(2, 2, 4), torch.zeros(2, 2, dtype=torch.long)
    whole = task.parameters()
    assert torch.equal(flatten(gradients(task, x, y, parameters=whole)), flatten(gradients(task, x, y)))
    with pytest.raises(DataError) as caught:
        gradients(task, x, y, parameters={**whole, "head.bias": whole["head.bias"].half()})
    assert str(caught.value) == "parameters: head.bias of torch.float16: expected torch.float64"
