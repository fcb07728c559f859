"""Features of uploads: exact layer inputs, projections, and which layers reveal their input."""

import pytest
import torch
from torch import Tensor, nn

from refiner.attacks.features import Projection, layer_input, linear_layers, unit_length
from refiner.attacks.learning.upload_features import UploadFeatures
from refiner.core import Task, flatten, gradients
from refiner.models import MLP, LeNet, ViT


def upload(task: Task, x: Tensor, y: Tensor) -> Tensor:
    return flatten(gradients(task, x, y))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18])
def test_the_input_of_a_linear_layer_is_exact_for_one_sample(scale: float) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(4, 1, 3, 16, 16), torch.tensor([[1], [0], [7], [7]])
    model = LeNet(input_shape=(3, 16, 16))
    task = Task(model, example=x[0])
    (layer,) = linear_layers(task)
    features = layer_input(task, scale * upload(task, x, y), layer)
    expected = model.body(x[:, 0]).flatten(1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_an_upload_of_zeros_has_zero_features() -> None:
    task = Task(nn.Linear(4, 3), example=torch.rand(1, 4))
    assert not bool(layer_input(task, torch.zeros(2, task.size), linear_layers(task)[0]).any())
    assert not bool(unit_length(torch.zeros(2, 5)).any())


def test_only_layers_with_a_bias_and_one_row_per_sample_reveal_their_input() -> None:
    x = torch.rand(2, 3, 16, 16)
    assert [layer.name for layer in linear_layers(Task(MLP(input_shape=(3, 16, 16)), x))] == ["body", "head"]
    vit = ViT(input_shape=(3, 16, 16), width=12, depth=1, heads=3)
    assert [layer.name for layer in linear_layers(Task(vit, x))] == ["head"]
    without_bias = nn.Sequential(nn.Flatten(), nn.Linear(768, 5), nn.GELU(), nn.Linear(5, 3, bias=False))
    assert [layer.name for layer in linear_layers(Task(without_bias, x))] == ["1"]
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(768, 5), nn.GELU(), nn.Linear(5, 3))
    frozen[1].bias.requires_grad_(False)
    assert [layer.name for layer in linear_layers(Task(frozen, x))] == ["3"]


def test_a_projection_keeps_inner_products_and_is_seeded() -> None:
    draws = torch.Generator().manual_seed(0)
    a = torch.randn(6, 900, generator=draws)
    a[1] = a[0] + 0.1 * a[1]
    project = Projection(900, 400, seed=1)
    projected, exact = unit_length(project(a)), unit_length(a)
    assert projected.shape == (6, 400) and project.width == 400
    assert float((projected @ projected.T - exact @ exact.T).abs().max()) < 0.25
    assert torch.equal(Projection(900, 400, seed=1)(a), project(a))
    assert not torch.equal(Projection(900, 400, seed=2)(a), project(a))
    # Every entry counts once: the sum of squares over all unit vectors is their number.
    assert float(project(torch.eye(900)).square().sum()) == 900


def test_class_rows_reveal_the_samples_of_a_batch_with_different_labels() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(2, 3, 3, 16, 16), torch.tensor([[1, 4, 8], [0, 5, 9]])
    model = LeNet(input_shape=(3, 16, 16))
    with torch.no_grad():
        # Equal probabilities for all classes: then the rows separate samples exactly.
        model.head.weight.zero_()
        model.head.bias.zero_()
    task = Task(model, example=x[0])
    features = UploadFeatures(task, samples=3, limit=4000, seed=0)
    assert features.kind == "classes"
    expected = model.body(x.flatten(0, 1)).flatten(1).view(2, 3, -1)
    rows = features([upload(task, x, y)], y)
    torch.testing.assert_close(rows[..., :-1], expected, rtol=1e-4, atol=1e-5)
    assert not bool(rows[..., -1].any())
    # Two samples with one label have their mean.
    twice = torch.tensor([[1, 1, 8], [0, 5, 5]])
    rows = features([upload(task, x, twice)], twice)[..., :-1]
    torch.testing.assert_close(rows[0, 0], expected[0, :2].mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows[0, 0], rows[0, 1])


def test_batches_that_contain_every_class_have_finite_features() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(1, 12, 3, 16, 16), torch.arange(12)[None] % 10
    task = Task(LeNet(input_shape=(3, 16, 16)), example=x[0])
    rows = UploadFeatures(task, samples=12, limit=4000, seed=0)([upload(task, x, y)], y)
    assert bool(rows.isfinite().all()) and bool(rows[..., -1].all())


def test_a_model_without_a_linear_layer_is_projected() -> None:
    x = torch.rand(3, 1, 3, 16, 16)
    model = nn.Sequential(nn.Conv2d(3, 10, 16), nn.Flatten())
    task = Task(model, example=x[0])
    features = UploadFeatures(task, samples=1, limit=200, seed=0)
    assert features.kind == "projected"
    gradient = upload(task, x, torch.zeros(3, 1, dtype=torch.long))
    assert features([gradient], x).shape == (3, 1, 200)
    both = UploadFeatures(task, samples=1, limit=200, seed=0, uploads=2)
    assert both([gradient, gradient], x).shape == (3, 1, 200)
    # The length of an upload does not matter.
    torch.testing.assert_close(features([3 * gradient], x), features([gradient], x))


def test_more_layer_inputs_than_the_limit_are_projected() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(3, 1, 3, 16, 16), torch.zeros(3, 1, dtype=torch.long)
    task = Task(MLP(input_shape=(3, 16, 16), hidden=8), example=x[0])
    gradient = upload(task, x, y)
    wide, narrow = (UploadFeatures(task, 1, limit, seed=0)([gradient], y) for limit in (4000, 50))
    assert wide.shape == (3, 1, 768 + 8) and narrow.shape == (3, 1, 50)
    torch.testing.assert_close(narrow[:, 0], Projection(776, 50, seed=0)(wide[:, 0]))
