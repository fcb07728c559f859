"""A model, a few victims, and quick audits that several tests share."""

from collections.abc import Callable

import pytest
import torch

from refiner.attacks import InvertingGradients
from refiner.audit import AuditResult, audit
from refiner.core import Task
from refiner.data import Sample, load_sample
from refiner.models import MLP

QUICK = InvertingGradients(iterations=24)


@pytest.fixture(scope="session")
def sample() -> Sample:
    return load_sample()


@pytest.fixture(scope="session")
def task(sample: Sample) -> Task:
    """A model without a convolution: an attack step takes a tenth of the time of LeNet."""
    torch.manual_seed(0)
    return Task(MLP(hidden=16), example=sample.images[:1])


@pytest.fixture(scope="session")
def wide_task(sample: Sample) -> Task:
    """A wider one, which reveals far more without a defence than with one, whatever the seed."""
    torch.manual_seed(0)
    return Task(MLP(hidden=64), example=sample.images[:1])


@pytest.fixture(scope="session")
def audited(wide_task: Task, sample: Sample) -> Callable[[str], AuditResult]:
    """`audited("refiner")`: the audit of three victims with that defence, run once."""
    results: dict[str, AuditResult] = {}

    def run(defense: str) -> AuditResult:
        if defense not in results:
            control = defense == "none" or run("none")
            results[defense] = audit(
                wide_task,
                sample.images[:3],
                sample.labels[:3],
                defense=defense,
                attack=QUICK,
                control=control,
            )
        return results[defense]

    return run
