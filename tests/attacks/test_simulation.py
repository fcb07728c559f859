"""Simulators: what they accept, and what attacks accept of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.conftest import SIDE
from torch import Tensor

from refiner.attacks import (
    InvertingGradients,
    LinearReconstruction,
    Observation,
    SimulatedUploads,
    Simulator,
    ThreatModel,
)
from refiner.errors import DataError, RefinerError, SettingError, ThreatModelError

LINEAR = LinearReconstruction()


def nothing(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
    raise AssertionError("no upload may be simulated before the images are checked")


def images(count: int = 120, side: int = SIDE) -> Tensor:
    return torch.rand(count, 3, side, side)


@pytest.mark.parametrize("capability", ["public", "defense"])
def test_an_attack_that_learns_needs_public_images_and_the_defence(
    capability: str, observation: Observation
) -> None:
    assert getattr(ThreatModel(), capability)
    simulator = Simulator(images(), torch.zeros(120, dtype=torch.long), nothing)
    denied = replace(ThreatModel(), **{capability: False})
    with pytest.raises(
        ThreatModelError, match=f"linear needs {capability}, which this threat model does not"
    ):
        LINEAR.reconstruct(observation, threat=denied, simulator=simulator)
    # An attack that does not need it must not be given it either.
    with pytest.raises(ThreatModelError, match=f"the simulator contains {capability}, which"):
        InvertingGradients(iterations=1).reconstruct(observation, threat=denied, simulator=simulator)


def test_no_simulator_is_one_line(observation: Observation) -> None:
    with pytest.raises(DataError) as caught:
        LINEAR.reconstruct(observation)
    assert str(caught.value) == (
        "simulator = None: expected a Simulator: linear learns from public images and the defence"
    )
    with pytest.raises(SettingError, match="simulator = 5: expected a Simulator or None"):
        LINEAR.reconstruct(observation, simulator=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: (images(side=4), torch.zeros(120, dtype=torch.long)),
            "public images = [3, 4, 4]: expected images of shape [3, 8, 8], the model's input",
        ),
        (
            lambda: (images(99), torch.zeros(99, dtype=torch.long)),
            "public_images = 99: expected at least 100 public images besides the victims, which linear needs",
        ),
        (
            lambda: (images(), torch.full((120,), 10)),
            "public labels = 10: expected integers in [0, 9], the classes of the model",
        ),
        (
            lambda: (images(), torch.full((120,), -1)),
            "public labels = -1: expected integers in [0, 9], the classes of the model",
        ),
        (
            lambda: (images(), torch.zeros(120)),
            "public labels = float32 tensor of shape [120]: expected integers in [0, 9]",
        ),
        (
            lambda: (images().mul(torch.nan), torch.zeros(120, dtype=torch.long)),
            "public images = float32 tensor of shape [120, 3, 8, 8]: expected finite floats",
        ),
        (
            lambda: (images(), torch.zeros(5)),
            "labels = [5]: expected [120], one label for every public image",
        ),
        (lambda: (images()[:0], torch.zeros(0)), "expected one or more public images [N, *input]"),
    ],
)
def test_wrong_public_images_are_one_line(
    make: Callable[[], tuple[Any, Any]], message: str, observation: Observation
) -> None:
    with pytest.raises(RefinerError) as caught:
        LINEAR.reconstruct(observation, simulator=Simulator(*make(), nothing))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_too_few_images_for_the_batch_size_are_one_line(observation: Observation) -> None:
    simulator = Simulator(images(150), torch.zeros(150, dtype=torch.long), nothing)
    with pytest.raises(DataError, match=r"public_images = 150: expected at least 160 .* for batches of 16"):
        LINEAR.reconstruct(replace(observation, samples=16), simulator=simulator)
