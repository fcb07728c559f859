"""What a loss compares scores with: class labels, or numbers for every output, as in BCE and regression."""

import warnings
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from refiner.core.model_validation import WRONG_DTYPE_ERRORS, check_loss
from refiner.errors import DataError

TargetKind = Literal["labels", "values", "numbers"]
"""Class labels `[B]`; a value for every output, `[B, outputs]`, such as probabilities; one number `[B]`."""


def accepted_targets(loss: Callable[[Tensor, Tensor], Tensor], scores: Tensor) -> dict[TargetKind, Tensor]:
    """Return an example of every kind of target that a loss takes.

    Args:
        loss: The loss.
        scores: Scores `[B, outputs]`.

    Returns:
        Targets for these scores, by kind; at least one.

    Raises:
        DataError: The loss takes none, with the reason why it takes no labels.

    >>> from torch.nn import functional as F
    >>> scores = torch.rand(2, 3)
    >>> list(accepted_targets(F.cross_entropy, scores)), list(accepted_targets(F.mse_loss, scores))
    (['labels', 'values'], ['values'])
    """
    examples: dict[TargetKind, Tensor] = {
        "labels": torch.zeros(len(scores), dtype=torch.long, device=scores.device),
        "values": torch.full_like(scores, 1 / scores.shape[1]),
        "numbers": torch.zeros(len(scores), dtype=scores.dtype, device=scores.device),
    }
    accepted: dict[TargetKind, Tensor] = {}
    reasons = []
    for kind, example in examples.items():
        with warnings.catch_warnings():
            # Regression losses warn of a target that they would stretch to the scores' shape.
            warnings.filterwarnings("error", message=".*target size")
            try:
                check_loss(loss, scores, example)
            except DataError as error:
                reasons.append(error)
                continue
        accepted[kind] = example
    if not accepted:
        raise reasons[0]
    differentiable = {kind: y for kind, y in accepted.items() if _is_differentiable(loss, scores, y)}
    # If the loss has no gradient at all, the validation of the model says why.
    return differentiable or accepted


def _is_differentiable(loss: Callable[[Tensor, Tensor], Tensor], scores: Tensor, y: Tensor) -> bool:
    leaf = scores.detach().requires_grad_()
    try:
        torch.autograd.grad(loss(leaf, y), leaf)
    except WRONG_DTYPE_ERRORS:
        return False
    return True


def kind_of_target(y: Tensor, samples: torch.Size, outputs: int) -> TargetKind | None:
    """Return which kind of target `y` is by its dtype and shape; None if it is none.

    >>> kind_of_target(torch.rand(4, 10), torch.Size([4]), 10)
    'values'
    """
    if y.dtype == torch.long:
        return "labels" if y.shape == samples else None
    if not y.is_floating_point():
        return None
    if y.shape == (*samples, outputs):
        return "values"
    return "numbers" if y.shape == samples else None


def describe_targets(kinds: Iterable[TargetKind], samples: torch.Size, outputs: int) -> str:
    """Return the shapes of these kinds of targets as text for an error.

    >>> describe_targets(["labels", "values"], torch.Size([4]), 10)
    'torch.int64 labels [4] or floating-point values [4, 10]'
    """
    shapes: dict[TargetKind, str] = {
        "labels": f"torch.int64 labels {list(samples)}",
        "values": f"floating-point values {[*samples, outputs]}",
        "numbers": f"floating-point values {list(samples)}",
    }
    return " or ".join(shapes[kind] for kind in kinds)
