"""Inputs of a network from uploads: scale, outliers, dead entries, projections."""

import pytest
import torch
from tests.attacks.small_learning import CLASSES, SIDE, small_task
from torch import Tensor

from refiner.attacks.learning.upload_inputs import UploadInputs
from refiner.core import Task, flatten, gradients

TASK = small_task()
LABELS = torch.arange(60)[:, None] % CLASSES


def uploads(seed: int = 0) -> Tensor:
    x = torch.rand(60, 1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    return flatten(gradients(TASK, x, LABELS))


def fitted(limit: int = 5000, seed: int = 0, task: Task = TASK) -> UploadInputs:
    inputs = UploadInputs(task, 1, 1, limit, seed)
    inputs.fit([uploads()], LABELS)
    return inputs


def test_every_input_has_unit_scale_and_no_outliers() -> None:
    values = fitted()([uploads()], LABELS)
    assert float(values.abs().max()) <= 8
    # Some entries of a gradient are zero for most samples: clipped, they have less than unit scale.
    rms = values.square().mean(0).sqrt()
    assert 0.9 < float(rms.median()) < 1.01 and float(rms.max()) < 1.05


def test_the_length_of_an_upload_shows_in_one_input() -> None:
    inputs, gradient = fitted(), uploads(1)
    plain, longer = inputs([gradient], LABELS), inputs([1.5 * gradient], LABELS)
    torch.testing.assert_close(plain[:, 1:], longer[:, 1:], rtol=1e-3, atol=1e-3)
    assert bool((longer[:, 0] > plain[:, 0]).all())


def test_dead_entries_and_zero_uploads_give_zeros() -> None:
    gradient = uploads()
    gradient[:, 7] = 0
    inputs = UploadInputs(TASK, 1, 1, 5000, 0)
    inputs.fit([gradient], LABELS)
    hostile = uploads(1)
    hostile[0], hostile[1] = 0, 3e38
    values = inputs([hostile], LABELS)
    assert bool(values.isfinite().all()) and not bool(values[:, 1 + 7].any())
    assert not bool(values[0, 1:].any())


@pytest.mark.parametrize("limit", [50, 300])
def test_projections_depend_on_the_seed_alone(limit: int) -> None:
    first, again, other = (fitted(limit, seed)([uploads(1)], LABELS) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape[1] <= 1 + 2 * limit


def test_the_inputs_of_linear_layers_come_last() -> None:
    inputs = fitted()
    assert inputs.revealed == 3 * SIDE**2 + 6
    values = inputs([uploads(1)], LABELS)[:, -inputs.revealed :][:, : 3 * SIDE**2]
    x = torch.rand(60, 3 * SIDE**2, generator=torch.Generator().manual_seed(1))
    first = torch.rand(60, 3 * SIDE**2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(values, x / first.square().mean(0).sqrt(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("samples", [2, 3, 6])
def test_every_sample_has_features_of_its_own_however_large_the_batch(samples: int) -> None:
    limit = 40
    x = torch.rand(60, samples, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60 * samples).view(60, samples) % CLASSES
    gradient = flatten(gradients(TASK, x, labels))
    inputs = UploadInputs(TASK, samples, 1, limit, 0)
    inputs.fit([gradient], labels)
    assert 0 < inputs.revealed <= limit and inputs.revealed % samples == 0
    # The row of a label reveals the mean of its samples, which therefore have the same features; their scales
    # differ.
    same = labels[:, :1].expand_as(labels)
    values = inputs([flatten(gradients(TASK, x, same))], same)[:, -inputs.revealed :]
    first, *others = values.view(60, samples, -1).sign().unbind(1)
    assert bool(first.any()) and all(torch.equal(first, other) for other in others)
