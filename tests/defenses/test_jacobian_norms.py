"""Jacobian norms of features against one backward pass per feature."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from refiner import LeNet, Task
from refiner.core.module_inputs import module_input, override_output
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses.jacobian_norms import estimated_norms, exact_norms, layer_input
from refiner.defenses.receptive_fields import conv_chain
from refiner.errors import DataError
from refiner.models import make_model, resnet


def images(victims: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The middle of real images: a quarter of the features, and of the time."""
    middle = load_sample().images[: victims * size, :, 8:24, 8:24]
    return middle.reshape(victims, size, 3, 16, 16).to(dtype)


@cache
def seeded(dtype: torch.dtype = torch.float32) -> Task:
    torch.manual_seed(0)
    return Task(LeNet(input_shape=(3, 16, 16)).to(dtype), example=images(1, 2, dtype)[0])


def loop(task: Task, x: Tensor, layer: str = "head", numbers: slice = slice(None)) -> Tensor:
    """The reference: one backward pass per feature through the plain model."""
    rows = []
    for batch in x:
        point, seen = batch.clone().requires_grad_(), []
        handle = task.model.get_submodule(layer).register_forward_hook(
            lambda _m, args, _out, seen=seen: seen.append(args[0])
        )
        task.model(point)
        handle.remove()
        jacobian = [torch.autograd.grad(r.sum(), point, retain_graph=True)[0] for r in seen[0].T[numbers]]
        rows.append(torch.stack([row.flatten(1).norm(dim=1) for row in jacobian], dim=1))
    return torch.stack(rows)


def relative_error(norms: Tensor, expected: Tensor) -> float:
    """The largest relative error of an entry; zeros must be exact."""
    return float(((norms - expected).abs() / torch.where(expected == 0, 1e-30, expected)).max())


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_exact_norms_equal_those_of_a_loop_over_features(dtype: torch.dtype, allowed: float) -> None:
    task, x = seeded(dtype), images(2, 2, dtype)
    norms = exact_norms(task, x, "head")
    assert norms.shape == (2, 2, 192)
    assert relative_error(norms, loop(task, x)) < allowed


# Little larger than the receptive field, 11 × 10: each feature of the reference is a pass.
SHAPE = (12, 14)


class ConvNet(nn.Module):
    """Convolutions with unequal strides, paddings and dilations, and other modules between them."""

    def __init__(self, between: nn.Module | None = None, shape: tuple[int, int] = SHAPE) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 5, (3, 2), stride=(2, 1), padding=(1, 3)),
            between or nn.Identity(),
            nn.Dropout(),
            nn.Tanh(),
            nn.Sigmoid(),
            nn.Conv2d(5, 4, (2, 3), stride=(1, 3), padding=(0, 1), dilation=(2, 1), bias=False),
            nn.Conv2d(4, 3, 3, padding=2),
            nn.ELU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            self.head = nn.Linear(self.body(torch.zeros(1, 2, *shape)).shape[1], 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class InPlace(nn.Module):
    """Changes its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(3)


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(2, 3)


def random_images(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_receptive_fields_of_unequal_convolutions() -> None:
    torch.manual_seed(0)
    x = random_images(2, 3, 2, *SHAPE)
    task = Task(ConvNet().double().eval(), example=x[0])
    assert conv_chain(task, x.flatten(0, 1), "head") is not None
    expected = loop(task, x)
    for chunk in (None, 1, 500):
        assert relative_error(exact_norms(task, x, "head", chunk=chunk), expected) < 1e-9


def test_inference_tensors_are_not_recognised_as_a_chain() -> None:
    torch.manual_seed(0)
    x = random_images(1, 2, 2, *SHAPE)
    task = Task(ConvNet().double().eval(), example=x[0])
    with torch.inference_mode():
        same = x.clone()
        assert conv_chain(task, x[0], "head") is None
    assert conv_chain(task, same[0], "head") is None


@pytest.mark.parametrize("activation", ["relu", "gelu", "softplus"])
def test_receptive_fields_of_lenet(activation: str) -> None:
    """At full size: the receptive field of 29 × 29 is smaller than the image."""
    torch.manual_seed(0)
    x = load_sample().images[:2].view(1, 2, 3, 32, 32)
    task = Task(LeNet(activation=activation), example=x[0])
    assert conv_chain(task, x[0], "head") is not None
    few = slice(0, 768, 37)
    assert relative_error(exact_norms(task, x, "head")[..., few], loop(task, x, numbers=few)) < 1e-5


@pytest.mark.parametrize(
    ("between", "shape"),
    [
        (InPlace(), SHAPE),
        (Transposed(), (14, 12)),
        (nn.MaxPool2d(3, 1, 1), SHAPE),
        (nn.GroupNorm(1, 5), SHAPE),
        (nn.Softmax(1), SHAPE),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Tanh()), SHAPE),
        (None, (7, 6)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_other_modules_are_not_recognised_as_a_chain(
    between: nn.Module | None, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x = random_images(1, 2, 2, *shape)
    task = Task(ConvNet(between, shape).double().eval(), example=x[0])
    assert conv_chain(task, x[0], "head") is None
    assert relative_error(exact_norms(task, x, "head"), loop(task, x)) < 1e-9
    assert not any(module._forward_hooks for module in task.modules())


def test_a_model_with_a_forward_hook_is_not_recognised_as_a_chain() -> None:
    torch.manual_seed(0)
    x = random_images(1, 2, 2, *SHAPE)
    model = ConvNet().double().eval()
    model.body[0].register_forward_hook(lambda _m, _args, out: out * 3)
    task = Task(model, example=x[0])
    assert conv_chain(task, x[0], "head") is None
    assert relative_error(exact_norms(task, x, "head"), loop(task, x)) < 1e-9


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet10", {"groups": 4}),
        ("resnet10", {"norm": "batch", "groups": 4}),
        ("vit", {"width": 16, "depth": 1, "heads": 2}),
    ],
)
def test_norms_of_other_models(
    name: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With batch norm, which mixes samples, the loop sums a feature over the batch."""
    monkeypatch.setattr(resnet, "WIDTHS", (8, 8, 16, 16))
    x = images(1, 2, torch.float64)[..., 4:12, 4:12]
    torch.manual_seed(0)
    task = Task(make_model(name, input_shape=(3, 8, 8), **settings).double(), example=x[0])
    expected = loop(task, x)
    assert relative_error(exact_norms(task, x, "head"), expected) < 1e-9
    estimate = estimated_norms(task, x, "head", probes=64, noise=NoiseSource(seed=0))
    assert estimate.shape == expected.shape
    if "norm" not in settings:
        assert abs(float(estimate.norm() / expected.norm()) - 1) < 0.2


@pytest.mark.processes
def test_the_chunk_size_does_not_change_the_norms() -> None:
    task, x = seeded(torch.float64), images(2, 1, torch.float64)

    def norms(chunk: int) -> tuple[Tensor, Tensor]:
        noise = NoiseSource(seed=0)
        estimate = estimated_norms(task, x, "head", probes=5, noise=noise, chunk=chunk)
        return exact_norms(task, x, "head", chunk=chunk), estimate

    exact, estimated = norms(64)
    for chunk in (1, 7, 10_000):
        other = norms(chunk)
        assert relative_error(other[0], exact) < 1e-9
        assert relative_error(other[1], estimated) < 1e-9


def test_a_victims_norms_do_not_depend_on_other_victims() -> None:
    task, x = seeded(), images(3, 2)
    noise = NoiseSource(seed=0)
    together = exact_norms(task, x, "head"), estimated_norms(task, x, "head", probes=4, noise=noise)
    for victim in range(3):
        one = x[victim : victim + 1]
        alone = exact_norms(task, one, "head"), estimated_norms(task, one, "head", probes=4, noise=noise)
        assert relative_error(alone[0][0], together[0][victim]) < 1e-5
        # Where the terms of an estimate cancel, the rest is partly rounding error.
        assert float((alone[1][0] - together[1][victim]).norm() / together[1][victim].norm()) < 1e-5


@pytest.mark.processes
def test_estimates_have_the_right_mean_and_standard_deviation() -> None:
    """The mean of squares is the exact square; the relative deviation is at most √(2 / probes)."""
    task, x = seeded(), images(1, 2)
    expected = exact_norms(task, x, "head").square()
    runs = [estimated_norms(task, x, "head", probes=16, noise=NoiseSource(seed=s)) for s in range(20)]
    ratios = torch.stack([run.square() / expected for run in runs])
    assert abs(float(ratios.mean()) - 1) < 0.01
    assert 0.25 < float(ratios.std(0).mean()) < 1.05 * (2 / 16) ** 0.5
    # In small chunks, which are faster for many probes.
    estimate = estimated_norms(task, x, "head", probes=512, noise=NoiseSource(seed=0), chunk=128)
    ratios = estimate.square() / expected
    assert float((ratios - 1).abs().mean()) < 0.07


def test_probes_depend_on_the_seed_and_are_signs() -> None:
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 3)), example=torch.rand(2, 2, 4))
    x = torch.rand(1, 3, 2, 4)
    a, b, c = (estimated_norms(task, x, "2", probes=2, noise=NoiseSource(seed=s)) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
    # Features that are the pixels have derivatives of one for any signs.
    same = Task(nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), example=torch.rand(2, 2, 4))
    assert torch.equal(
        estimated_norms(same, x, "1", probes=3, noise=NoiseSource(seed=0)), torch.ones(1, 3, 8)
    )


def test_layer_input_is_the_input_of_the_layer() -> None:
    task, x = seeded(), images(2, 3)
    expected = task.model.body(x.flatten(0, 1)).flatten(1).view(2, 3, 192)
    torch.testing.assert_close(layer_input(task, x, "head"), expected.detach())
    assert not layer_input(task, x, "head").requires_grad


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(x).tanh())
        return out


def test_a_layer_that_runs_twice_raises_and_hooks_are_removed() -> None:
    task = Task(Twice(), example=torch.rand(2, 4))
    with pytest.raises(DataError, match="layer: expected a module that runs once"):
        layer_input(task, torch.rand(1, 2, 4), "layer")
    assert not task._structure.get_submodule("layer")._forward_hooks


def test_the_output_of_a_layer_can_be_overridden() -> None:
    x = images(1, 2)[0]
    task = Task(LeNet(input_shape=(3, 16, 16)), example=x)
    before = task.scores(task.parameters(), x)
    with override_output(task, "head", lambda module, r: r[:, :10]):
        within = task.scores(task.parameters(), x)
    assert torch.equal(within, module_input(task, task.parameters(), x, "head")[:, :10])
    assert torch.equal(task.scores(task.parameters(), x), before)
