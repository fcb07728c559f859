"""Inverting Gradients against an independent plain autograd loop."""

from dataclasses import replace

import torch
from tests.attacks.matching.plain_loop import plain_inverting
from torch import Tensor

from refiner.attacks import InvertingGradients, Observation, Pixels
from refiner.core.noise import NoiseSource


def test_the_attack_matches_a_plain_loop(
    small_observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    task, attack = small_observation.task, InvertingGradients(iterations=16, total_variation=0.1)
    batched = attack.reconstruct(small_observation, seed=7).x
    start = Pixels().initial(task, NoiseSource(seed=7), torch.arange(3)[:, None], torch.float32)
    for number, (x, y) in enumerate(zip(start, victims[1], strict=True)):
        alone = replace(small_observation, gradient=small_observation.gradient[number : number + 1])
        expected = plain_inverting(alone, x, y, iterations=16, total_variation=0.1)
        # Signs of derivatives near zero differ by rounding: a few pixels take other steps.
        equal = (batched[number] - expected).abs() < 1e-3
        assert float(equal.float().mean()) > 0.97
