"""Attribute inference finds a planted leak, and nothing in uploads that depend on no data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from refiner import NoDefense, Task
from refiner.attacks import Observation, SimulatedUploads, Simulator
from refiner.errors import DataError
from refiner.inference import (
    AttributeInference,
    AttributePrediction,
    PublicAttributes,
    auc_interval,
    explained_variance,
)
from refiner.inference.attribute import _ridge
from refiner.inference.upload_summary import UploadSummary

ATTACK = AttributeInference(clients=150, epochs=3)
PEOPLE, IMAGES, BATCH = 80, 3, 2


def random_upload(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(x), 63, generator=generator)


def planted_upload(x: Tensor, seed: int) -> Tensor:
    """One entry of the upload is the mean of the pixel that holds the attribute."""
    upload = random_upload(x, seed)
    upload[:, 17] = 4 * (x[:, :, 0].mean(1) - 0.5)
    return upload


def infer(upload: Callable[[Tensor, int], Tensor], shares: bool) -> tuple[AttributePrediction, Tensor]:
    """The prediction for 60 clients, and their values; public people have numbers below `PEOPLE`."""
    groups = torch.arange(PEOPLE).repeat_interleave(IMAGES)
    values = groups % 2
    images = torch.rand(len(groups), 20)
    images[:, 0] = values.float()
    task = Task(nn.Linear(20, 3), example=images)
    labels = torch.randint(0, 3, (len(groups),))

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        return SimulatedUploads([upload(x, seed)], None)

    clients = torch.rand(60, BATCH, 20)
    own = torch.randint(0, 2, (60, BATCH)) if shares else (torch.arange(60) % 2)[:, None].expand(60, BATCH)
    clients[:, :, 0] = own.float()
    update = NoDefense().protect(task, clients, torch.zeros(60, BATCH, dtype=torch.long))
    like = Observation.of(task, update)
    observation = Observation(task, like.parameters, upload(clients, 10**6), BATCH)
    prediction = ATTACK.infer(
        observation,
        Simulator(images, labels, protect),
        PublicAttributes(values, groups),
        shares=shares,
        seed=0,
    )
    return prediction, own.float().mean(1)


def test_a_planted_property_is_found() -> None:
    prediction, actual = infer(planted_upload, shares=False)
    assert auc_interval(prediction.scores, actual).value > 0.99
    assert ((prediction.scores > prediction.threshold) == (actual > 0.5)).float().mean() > 0.95


def test_a_planted_share_is_found() -> None:
    prediction, actual = infer(planted_upload, shares=True)
    assert explained_variance(prediction.scores, actual, prediction.blind).low > 0.5
    assert abs(prediction.blind - 0.5) < 0.1


def test_uploads_that_depend_on_no_data_reveal_nothing() -> None:
    prediction, actual = infer(random_upload, shares=False)
    found = auc_interval(prediction.scores, actual)
    assert found.low <= 0.5 <= found.high
    prediction, actual = infer(random_upload, shares=True)
    assert explained_variance(prediction.scores, actual, prediction.blind).low <= 0


def test_no_person_is_both_trained_on_and_held_out() -> None:
    groups = torch.arange(40).repeat_interleave(3)
    public = PublicAttributes(groups % 2, groups)
    training, held_out = public.split(0.25, seed=0)
    both = [groups[(part.values >= 0)].unique() for part in (training, held_out)]
    assert not set(both[0].tolist()) & set(both[1].tolist()) and len(both[1]) == 10
    for shares in (False, True):
        passes = held_out.clients(20, 2, shares=shares, seed=0)
        assert sum(map(len, passes)) >= 20
        assert bool(torch.isin(groups[torch.cat(passes)], both[1]).all())
        if not shares:
            assert float(held_out.targets(passes).mean()) == 0.5


def test_too_few_public_people_are_one_line() -> None:
    with pytest.raises(DataError, match="at least two groups, such as people, whose attribute is 1"):
        PublicAttributes(torch.tensor([0, 0, 1]), torch.arange(3)).split(0.25, 0)
    with pytest.raises(DataError, match="public = '2 and 2 images': expected images for batches of 3"):
        PublicAttributes(torch.tensor([0, 0, 1, 1])).clients(4, 3, shares=False, seed=0)
    with pytest.raises(DataError, match="public groups = int64 tensor of shape"):
        PublicAttributes(torch.tensor([0, 1]), torch.arange(3))


@pytest.mark.parametrize("clients", [12, 60])
def test_ridge_is_the_solution_of_the_normal_equations(clients: int) -> None:
    """Whether there are fewer clients than values or more."""
    x, coefficients = torch.randn(clients, 20, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    t = 0.1 * x @ coefficients + 0.4
    predict = _ridge([x, x[:5]], [t, t[:5]])
    centred = x - x.mean(0)
    system = centred.T @ centred / clients + 1e-3 * torch.eye(20, dtype=torch.float64)
    solution = torch.linalg.solve(system, centred.T @ (t - t.mean()) / clients)
    expected = t.mean() + (torch.eye(20, dtype=torch.float64) - x.mean(0)) @ solution
    torch.testing.assert_close(predict(torch.eye(20, dtype=torch.float64)), expected.float())


def test_a_summary_does_not_depend_on_the_length_but_for_one_value() -> None:
    task = Task(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), example=torch.rand(2, 6))
    update = NoDefense().protect(task, torch.rand(30, 2, 6), torch.randint(0, 3, (30, 2)))
    observation = Observation.of(task, update)
    summary = UploadSummary(observation, limit=16, seed=0)
    summary.fit(observation.gradient)
    one, two = (summary(factor * observation.gradient) for factor in (1.0, 3.0))
    changed = ~torch.isclose(one, two, atol=1e-4).all(0)
    assert changed[:1].all() and int(changed[: 1 + 16 + 16].sum()) == 1
    assert float(one.abs().max()) <= 8
