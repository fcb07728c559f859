"""A model, a few victims, and quick audits of them that all tests here look at."""

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
def task(sample: Sample) -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=sample.images[:1])


@pytest.fixture(scope="session")
def audited(task: Task, sample: Sample) -> Callable[[str], AuditResult]:
    """`audited("refiner")`: three victims behind that defence, attacked once."""
    held: dict[str, AuditResult] = {}

    def run(defense: str) -> AuditResult:
        if defense not in held:
            held[defense] = audit(task, sample.images[:3], sample.labels[:3], defense=defense, attack=QUICK)
        return held[defense]

    return run
