"""A model, a few victims, and quick audits that several tests share."""

from collections.abc import Callable

import pytest
import torch

from refiner.attacks import InvertingGradients
from refiner.audit import AuditResult, audit
from refiner.core import Task
from refiner.data import Sample, load_sample
from refiner.models import LeNet

QUICK = InvertingGradients(iterations=24)


@pytest.fixture(scope="session")
def sample() -> Sample:
    return load_sample()


@pytest.fixture(scope="session")
def lenet(sample: Sample) -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=sample.images[:1])


@pytest.fixture(scope="session")
def task(sample: Sample) -> Task:
    """A model with one convolution: an attack step takes a third of the time of LeNet."""
    torch.manual_seed(0)
    body = torch.nn.Conv2d(3, 12, 5, stride=2, padding=2)
    model = torch.nn.Sequential(body, torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(12 * 16 * 16, 10))
    return Task(model, example=sample.images[:1])


@pytest.fixture(scope="session")
def audited(lenet: Task, sample: Sample) -> Callable[[str], AuditResult]:
    """`audited("refiner")`: the audit of three victims with that defence, run once."""
    results: dict[str, AuditResult] = {}

    def run(defense: str) -> AuditResult:
        if defense not in results:
            control = defense == "none" or run("none")
            results[defense] = audit(
                lenet, sample.images[:3], sample.labels[:3], defense=defense, attack=QUICK, control=control
            )
        return results[defense]

    return run
