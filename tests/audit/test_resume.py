"""Tests of the `resume` argument: a str and a Path are equivalent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.audit.conftest import QUICK

from refiner.audit import AuditResult, Tuning, audit
from refiner.core import Task
from refiner.data import Sample
from refiner.errors import SettingError


def test_resume_accepts_a_str_or_a_path(task: Task, sample: Sample, tmp_path: Path) -> None:
    tune = Tuning(sample.images[10:11], sample.labels[10:11], total_variation=(), lr=(0.01,))

    def run(resume: Any) -> AuditResult:
        return audit(
            task,
            sample.images[:1],
            sample.labels[:1],
            defense="none",
            attack=replace(QUICK, iterations=1),
            metrics=(),
            tune=tune,
            resume=resume,
        )

    path = tmp_path / "x.st"
    first = run(str(path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.st", "x.tuning1.st"]
    again = run(path)
    assert not first.seconds.resumed and again.seconds.resumed and again.means == first.means
    with pytest.raises(SettingError, match="resume = 5: expected the path of a file or None"):
        run(5)
