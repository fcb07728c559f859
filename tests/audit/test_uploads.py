"""What a server sees of many victims that are defended a few at a time."""

import pytest
import torch

from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.defenses import make_defense
from refiner.models import LeNet


def test_no_two_victims_share_their_noise() -> None:
    x = torch.rand(1, 1, 3, 32, 32).expand(5, -1, -1, -1, -1)
    y = torch.zeros(5, 1, dtype=torch.long)
    task = Task(LeNet(), example=x[0])
    noisy = make_defense("dp-gaussian:magnitude=0.1")
    _, seen = uploads(task, noisy, x, y, labels=False, seed=0, chunk=2)
    apart = torch.pdist(seen.gradient)
    assert float(apart.min()) > 0.5 * float(apart.max())
    _, again = uploads(task, noisy, x, y, labels=False, seed=0, chunk=2)
    assert torch.equal(seen.gradient, again.gradient)


@pytest.mark.parametrize(
    "name",
    [
        "dp-gaussian:magnitude=0.1",
        "dp-laplace:magnitude=0.1,per_sample=true",
        "gq:bits=2,stochastic=true",
        "soteria:sensitivity=estimated,probes=2",
        "refiner:iterations=1+gq:bits=2,stochastic=true",
    ],
)
def test_a_victim_has_the_same_noise_in_parts_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(5, 1, 3, 32, 32), torch.zeros(5, 1, dtype=torch.long)
    task = Task(LeNet(), example=x[0])
    whole, parts = (
        uploads(task, make_defense(name), x, y, labels=False, seed=0, chunk=chunk)[1].gradient
        for chunk in (None, 2)
    )
    assert float((parts - whole).norm() / whole.norm()) < 1e-5
