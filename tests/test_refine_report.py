"""What `refiner refine` measures, against a plain loop; a quiet layer does not pass for hidden."""

import pytest
import torch
from torch import Tensor, nn

from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense, Refiner
from refiner.models import LeNet
from refiner.refine_report import COLUMNS, least_layer_distance, refine_each


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    """Two single images."""
    sample = load_sample()
    return sample.images[:2, None], sample.labels[:2, None]


@pytest.fixture
def task(images: tuple[Tensor, Tensor]) -> Task:
    """A new LeNet."""
    torch.manual_seed(0)
    return Task(LeNet(), example=images[0][0])


def plain_gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradient of every parameter, by plain autograd."""
    return list(torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters())))


def test_distances_are_those_of_a_plain_loop(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:2, 0], images[1][:2, 0]
    defense = Refiner(secret=b"s" * 32)
    raw, refined = refine_each(task, x, y, {"refiner": defense})
    assert raw.cells()[3:5] == ("0.000", "0.000") and len(refined.cells()) == len(COLUMNS)
    layers: dict[str, list[float]] = {}
    for image, noisy, label in zip(x, defense.noisy(x), y, strict=True):
        real, sent = (plain_gradients(task.model, data[None], label[None]) for data in (image, noisy))
        names = [name.rsplit(".", 1)[0] for name, _ in task.model.named_parameters()]
        for layer in dict.fromkeys(names):
            truth, upload = (
                torch.cat([g.flatten() for g, name in zip(part, names, strict=True) if name == layer])
                for part in (real, sent)
            )
            layers.setdefault(layer, []).append(float((upload - truth).norm() / truth.norm()))
    means = [sum(values) / len(values) for values in layers.values()]
    assert refined.least_layer_distance == pytest.approx(min(means), rel=1e-3)
    assert refined.least_layer_distance <= refined.relative_distance < max(means)


@pytest.mark.hostile
def test_a_quiet_layer_that_is_sent_as_it_is_does_not_pass_for_hidden(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    real = NoDefense().protect(task, images[0][:1], images[1][:1]).flat()
    quiet = sum(task.shapes[name].numel() for name in task.layers[0].parameters)
    real[:, :quiet] *= 1e-3
    upload = real.clone()
    upload[:, quiet:] *= -1
    assert float((upload - real).norm() / real.norm()) > 1.9
    assert least_layer_distance(task, upload, real) == 0
