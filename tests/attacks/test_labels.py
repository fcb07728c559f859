"""Labels from the last layer: right on every undefended single image, nearly right on small batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from refiner.attacks import InvertingGradients, Observation, infer_labels
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import DPGaussian, NoDefense
from refiner.errors import DataError
from refiner.models import build


class Headless(nn.Module):
    """A classifier whose last layer has no bias, or no row a class."""

    def __init__(self, bias: bool = False, mixed: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 20), nn.Sigmoid())
        self.head = nn.Linear(20, 10, bias=bias)
        self.mix = nn.Conv1d(1, 1, 3, padding=1) if mixed else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x))
        return scores if self.mix is None else self.mix(scores[:, None])[:, 0]


def seen(model: nn.Module, batch: int) -> tuple[Observation, torch.Tensor]:
    sample = load_sample()
    x, y = sample.images.view(-1, batch, 3, 32, 32), sample.labels.view(-1, batch)
    task = Task(model, example=x[0])
    return Observation.of(task, NoDefense().protect(task, x, y)), y


@pytest.mark.parametrize("name", ["lenet", "headless"])
def test_all_single_images(name: str) -> None:
    torch.manual_seed(0)
    observation, y = seen(Headless() if name == "headless" else build("lenet"), 1)
    assert torch.equal(infer_labels(observation), y)


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_counts_of_batches(batch: int) -> None:
    torch.manual_seed(0)
    observation, y = seen(build("lenet"), batch)
    found = infer_labels(observation)
    assert found.shape == y.shape
    assert float((found == y.sort(1).values).all(1).float().mean()) > 0.95


def test_models_that_tell_no_labels() -> None:
    observation, _ = seen(Headless(mixed=True, bias=True), 1)
    with pytest.raises(DataError, match=r"last layer \(mix\).*grant the labels"):
        infer_labels(observation)
    observation, _ = seen(Headless(), 2)
    with pytest.raises(DataError, match="bias"):
        infer_labels(observation)


def test_counts_of_an_upload_on_another_scale() -> None:
    torch.manual_seed(0)
    sample = load_sample()
    x, y = sample.images[:16].view(2, 8, 3, 32, 32), sample.labels[:16].view(2, 8)
    task = Task(build("lenet"), example=x[0], loss=nn.CrossEntropyLoss(reduction="sum"))
    assert infer_labels(Observation.of(task, NoDefense().protect(task, x, y))).shape == (2, 8)


def test_several_uploads_tell_more_than_one() -> None:
    """Fresh noise averages out for the labels, too."""
    torch.manual_seed(0)
    sample = load_sample()
    x, y = sample.images[:30, None], sample.labels[:30, None]
    task = Task(build("lenet"), example=x[0])
    noisy = DPGaussian(magnitude=0.4)
    uploads = [Observation.of(task, noisy.protect(task, x, y, seed=seed)) for seed in range(10)]
    shares = [float((infer_labels(*some) == y).float().mean()) for some in (uploads[:1], uploads)]
    assert shares[0] < 0.8 and shares[1] > 0.95
    # An attack takes all of them: the first alone tells one of these wrong.
    row = int((infer_labels(uploads[0]) != y).flatten().nonzero()[0])
    one = [replace(upload, gradient=upload.gradient[row : row + 1]) for upload in uploads]
    assert torch.equal(InvertingGradients(iterations=1).reconstruct(one).labels, y[row : row + 1])
