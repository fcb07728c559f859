"""APRIL: one image from the gradients of a vision transformer's patch embedding and positions, exactly."""

import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from refiner.attacks.base import Attack
from refiner.attacks.closed_form.noisy_equations import solve_noisy
from refiner.attacks.closed_form.patch_embedding import find_patch_embedding
from refiner.attacks.label_inference import known_labels
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.core.task import Task

# The standard deviation of an image's pixels, about.
_PIXEL_SPREAD = 0.25


@dataclass(frozen=True)
class April(Attack):
    """Reads a single image off a vision transformer with learned positions: exact without a defence.

    The gradient of the position embedding is that of the tokens, G `[T, width]`, and the gradient of the
    patch embedding's weight is Gᵀ X. Its solution X, the patches, is unique if G has rank T, for which the
    width must be at least T; otherwise the part of X that G does not determine is mid-grey. Lu et al. solve
    for the tokens with the first attention's weights, which must then follow without a normalisation layer;
    the patch embedding's gradient needs no such condition.

    Behind noise the equations are solved as `noisy_equations` says, and what the noise hides is mid-grey.

    >>> from refiner import NoDefense
    >>> from refiner.models import ViT
    >>> x, y = torch.rand(3, 1, 3, 8, 8), torch.tensor([[7], [0], [4]])
    >>> task = Task(ViT(input_shape=(3, 8, 8), width=16, depth=2, heads=2), example=x[0])
    >>> observation = Observation.of(task, NoDefense().protect(task, x, y))
    >>> bool((April().reconstruct(observation).x - x).abs().max() < 1e-3)
    True
    """

    name: ClassVar[str] = "april"
    reference: ClassVar[str] = (
        "Lu, Zhang, Zhao, He and Cheng, APRIL: Finding the Achilles' Heel on Privacy for Vision "
        "Transformers, CVPR 2022"
    )
    single_only: ClassVar[str | None] = "of more images april sees only the sum of the tokens' gradients"

    def check(self, task: Task) -> None:
        """Raise unless the model embeds patches and adds a learned position embedding.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The model has another structure.
        """
        find_patch_embedding(task, self.name)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the images.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The images, in 0..1; grey where G = 0, which reveals nothing. The objective is the share of the
            weight's gradient that is not Gᵀ X: 0 for an undefended upload. A victim without a finite result
            has diverged.

        Raises:
            DataError: The model has another structure.
        """
        start = time.perf_counter()
        first = observations[0]
        found = find_patch_embedding(first.task, self.name)
        labels = known_labels(observations, threat)
        grey = found.pixels.patches_of(torch.full((1, found.pixels.pixels.numel()), 0.5).to(first.gradient))[
            0
        ]
        mean_square = float((grey.square() + (_PIXEL_SPREAD * found.pixels.scale).square()).mean())
        parts = []
        for observation in observations:
            gradient = first.task.unflatten(observation.gradient)
            parts.append((found.token_gradients(gradient).mT, found.weight_gradients(gradient)))
        tokens, weight = (torch.cat(column, dim=1).double() for column in zip(*parts, strict=True))
        with torch.no_grad():
            patches = solve_noisy(tokens, weight, grey, mean_square)
            residual = (weight - tokens @ patches).square().sum((1, 2))
            share = residual / weight.square().sum((1, 2)).clamp_min(torch.finfo(torch.float64).tiny)
            x = found.pixels.images_of(patches)
        failed = ~(x.isfinite().all(1) & share.isfinite())
        x = torch.where(failed[:, None], 0.5, x).clamp(0, 1).to(first.gradient)
        x = x.view(-1, 1, *first.task.input_shape)
        objective = share.masked_fill(failed, torch.inf).to(x)
        return Reconstruction(x, labels.to(x.device), objective, failed, time.perf_counter() - start)
