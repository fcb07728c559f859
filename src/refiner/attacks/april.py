"""APRIL: one image from the gradients of a vision transformer's patch embedding and positions, exactly."""

import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner.attacks.base import Attack, Reconstruction, RunOptions
from refiner.attacks.label_inference import known_labels
from refiner.attacks.observation import Observation
from refiner.attacks.patch_embedding import find_patch_embedding
from refiner.attacks.threat_model import ThreatModel
from refiner.core.task import Task
from refiner.errors import DataError

# The penalties that are compared, relative to the largest singular value.
_PENALTIES = torch.logspace(-9, 1, 41, dtype=torch.float64)
# The penalty where there are no more equations than unknowns, so that nothing shows the noise: smaller
# singular values are rounding errors of gradients in float32.
_ROUNDING = torch.tensor([1e-6], dtype=torch.float64)


@dataclass(frozen=True)
class April(Attack):
    """Reads a single image off a vision transformer with learned positions: exact without a defence.

    The gradient of the position embedding is that of the tokens, G `[T, width]`, and the gradient of the
    patch embedding's weight is Gᵀ X. Its solution X, the patches, is unique if G has rank T, for which the
    width must be at least T; otherwise the part of X that G does not determine is mid-grey. Lu et al. solve
    for the tokens with the first attention's weights, which must then follow without a normalisation layer;
    the patch embedding's gradient needs no such condition.

    The equations are solved by ridge regression, with the penalty that generalised cross-validation (Golub,
    Heath and Wahba, Technometrics 1979) chooses for each victim. Without noise that is least squares; with
    noise it does without the singular values that the noise hides. A width below T leaves no equations to
    choose by: the penalty is then that of rounding errors.

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

    def check(self, task: Task) -> None:
        """Raise unless the model embeds patches and adds a learned position embedding.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The model has another structure.
        """
        find_patch_embedding(task, self.name)

    def check_samples(self, samples: int) -> None:
        """Raise unless batches have one image.

        Args:
            samples: The samples of one observation.

        Raises:
            DataError: There are more.
        """
        if samples != 1:
            raise DataError(
                field="batch",
                value=samples,
                expected=f"1: of more images {self.name} sees only the sum of the tokens' gradients",
            )

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the images.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The images, in 0..1. The objective is the share of the weight's gradient that is not Gᵀ X: 0 for
            an undefended upload. A victim without a finite result, as for G = 0, has diverged.

        Raises:
            DataError: The model has another structure.
        """
        start = time.perf_counter()
        first = observations[0]
        found = find_patch_embedding(first.task, self.name)
        labels = known_labels(observations, threat)
        grey = found.pixels.patches_of(first.gradient.new_full((1, found.pixels.pixels.numel()), 0.5))
        parts = []
        for observation in observations:
            gradient = first.task.unflatten(observation.gradient)
            parts.append((found.token_gradients(gradient).mT, found.weight_gradients(gradient)))
        tokens, weight = (torch.cat(column, dim=1).double() for column in zip(*parts, strict=True))
        with torch.no_grad():
            deviation, residual = _ridge(tokens, weight - tokens @ grey)
            share = residual / weight.square().sum((1, 2))
            x = found.pixels.images_of(grey + deviation)
        failed = ~(x.isfinite().all(1) & share.isfinite())
        x = torch.where(failed[:, None], 0.5, x).clamp(0, 1).to(first.gradient)
        x = x.view(-1, 1, *first.task.input_shape)
        objective = share.masked_fill(failed, torch.inf).to(x)
        return Reconstruction(x, labels.to(x.device), objective, failed, time.perf_counter() - start)


def _ridge(matrix: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The ridge solution D `[V, T, inputs]` of A D = target for each victim, and ‖A D − target‖² `[V]`.

    Of `_PENALTIES` the one is taken with the smallest ‖A D − target‖² / (equations − effective unknowns)².
    That is no measure if there are no more equations than unknowns.
    """
    left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.mT @ target
    outside = (target - left @ inside).square().sum((1, 2))
    energy = inside.square().sum(2)
    free = matrix.shape[1] - singular.shape[1]
    compared = _PENALTIES if free else _ROUNDING
    penalties = (compared.to(matrix)[:, None] * singular[:, 0]).square()[..., None]
    kept = penalties / (singular.square() + penalties)
    residuals = outside + (kept.square() * energy).sum(2)
    scores = residuals / (free + kept.sum(2)).square()
    best = scores.argmin(0)
    victims = torch.arange(len(matrix), device=matrix.device)
    factor = singular / (singular.square() + penalties[best, victims])
    return right.mT @ (factor[..., None] * inside), residuals[best, victims]
