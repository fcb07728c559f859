"""Labels from the last layer: exact for undefended single images, nearly exact for small batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from refiner.attacks import InvertingGradients, Observation, infer_labels
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import DPGaussian, NoDefense
from refiner.errors import ThreatModelError
from refiner.models import make_model


class UnusualHead(nn.Module):
    """A classifier whose last layer has no bias, or no row for each class."""

    def __init__(self, bias: bool = False, mixed: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 20), nn.Sigmoid())
        self.head = nn.Linear(20, 10, bias=bias)
        self.mix = nn.Conv1d(1, 1, 3, padding=1) if mixed else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x))
        return scores if self.mix is None else self.mix(scores[:, None])[:, 0]


def observe(model: nn.Module, batch: int) -> tuple[Observation, torch.Tensor]:
    sample = load_sample()
    x, y = sample.images.view(-1, batch, 3, 32, 32), sample.labels.view(-1, batch)
    task = Task(model, example=x[0])
    return Observation.of(task, NoDefense().protect(task, x, y)), y


@pytest.mark.parametrize("name", ["lenet", "no bias"])
def test_labels_of_single_images_are_exact(name: str) -> None:
    torch.manual_seed(0)
    observation, y = observe(UnusualHead() if name == "no bias" else make_model("lenet"), 1)
    assert torch.equal(infer_labels(observation), y)


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_label_counts_of_small_batches(batch: int) -> None:
    torch.manual_seed(0)
    observation, y = observe(make_model("lenet"), batch)
    inferred = infer_labels(observation)
    assert inferred.shape == y.shape
    assert float((inferred == y.sort(1).values).all(1).float().mean()) > 0.95


def test_models_that_do_not_reveal_labels_raise() -> None:
    observation, _ = observe(UnusualHead(mixed=True, bias=True), 1)
    with pytest.raises(ThreatModelError, match=r"last layer \(mix\).*ThreatModel\(labels=True\)"):
        infer_labels(observation)
    observation, _ = observe(UnusualHead(), 2)
    with pytest.raises(ThreatModelError, match="bias"):
        infer_labels(observation)


def test_label_counts_of_a_summed_loss() -> None:
    torch.manual_seed(0)
    sample = load_sample()
    x, y = sample.images[:16].view(2, 8, 3, 32, 32), sample.labels[:16].view(2, 8)
    task = Task(make_model("lenet"), example=x[0], loss=nn.CrossEntropyLoss(reduction="sum"))
    assert infer_labels(Observation.of(task, NoDefense().protect(task, x, y))).shape == (2, 8)


@pytest.mark.processes
def test_several_noisy_uploads_reveal_labels_better_than_one() -> None:
    torch.manual_seed(0)
    sample = load_sample()
    x, y = sample.images[:30, None], sample.labels[:30, None]
    task = Task(make_model("lenet"), example=x[0])
    noisy = DPGaussian(magnitude=0.4)
    uploads = [Observation.of(task, noisy.protect(task, x, y, seed=seed)) for seed in range(10)]
    accuracy = [float((infer_labels(*used) == y).float().mean()) for used in (uploads[:1], uploads)]
    assert accuracy[0] < 0.8 and accuracy[1] > 0.95
    # An attack uses all uploads: this label is wrong with the first alone.
    row = int((infer_labels(uploads[0]) != y).flatten().nonzero()[0])
    one_victim = [replace(upload, gradient=upload.gradient[row : row + 1]) for upload in uploads]
    assert torch.equal(InvertingGradients(iterations=1).reconstruct(one_victim).labels, y[row : row + 1])
