"""Blind guesses: the scores of guesses made without any gradient, as the baseline of every metric."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.checks import choice
from refiner.errors import DataError
from refiner.metrics.image_checks import check_images, check_same_image_shape
from refiner.metrics.metric_registry import METRICS

GUESSES = ("grey", "mean image", "own colour")


@dataclass(frozen=True, eq=False)
class BlindGuess:
    """The score of each guess against each of N originals, and the best one."""

    metric: str
    scores: Mapping[str, Tensor]
    """By the guess's name, `[N]` each."""
    best: Tensor
    """The best score for each original, `[N]`."""
    winner: tuple[str, ...]
    """The name of the best guess for each original."""

    def beaten_by(self, scores: Tensor) -> Tensor:
        """Return which reconstructions are closer to their original than the best guess.

        Args:
            scores: The reconstructions' scores by the same metric, `[N]`.

        Returns:
            bool `[N]`.
        """
        if scores.shape != self.best.shape:
            raise DataError(
                f"scores: shape {list(scores.shape)}, expected {list(self.best.shape)}",
                field="scores",
                value=list(scores.shape),
                expected=str(list(self.best.shape)),
            )
        return scores > self.best if METRICS[self.metric].higher_is_closer else scores < self.best


def guess_images(original: Tensor, public: Tensor) -> dict[str, Tensor]:
    """Return the images of every guess, by name, `[N, C, H, W]` each.

    They are a uniform grey of 0.5, the mean of the public images, and each original's own mean colour. The
    third is more than an attacker knows without a gradient, and about what any gradient reveals.

    Args:
        original: `[N, C, H, W]` in 0..1.
        public: `[M, C, H, W]` in 0..1, without the victims.

    >>> images = guess_images(torch.zeros(2, 3, 8, 8), torch.ones(5, 3, 8, 8))
    >>> [(name, image.unique().item()) for name, image in images.items()]
    [('grey', 0.5), ('mean image', 1.0), ('own colour', 0.0)]
    """
    original = check_images("original", original)
    public = check_same_image_shape("public", public, original)
    return {
        "grey": torch.full_like(original, 0.5),
        "mean image": public.mean(0).to(original).expand_as(original),
        "own colour": original.mean((2, 3), keepdim=True).expand_as(original),
    }


def best_guesses(original: Tensor, public: Tensor) -> Tensor:
    """Return for each original the image of the guess with the highest PSNR.

    For metrics that score an image alone, such as its noise ratio, and so have no best guess of their own.

    Args:
        original: `[N, C, H, W]` in 0..1.
        public: `[M, C, H, W]` in 0..1, without the victims.

    Returns:
        `[N, C, H, W]`.

    >>> original = torch.stack([torch.full((3, 16, 16), 0.4), torch.full((3, 16, 16), 0.5)])
    >>> best_guesses(original, public=torch.full((1, 3, 16, 16), 0.3)).mean((1, 2, 3)).tolist()
    [0.4..., 0.5...]
    """
    winners, images = blind_guess(original, public).winner, guess_images(original, public)
    return torch.stack([images[name][index] for index, name in enumerate(winners)])


def blind_guess(original: Tensor, public: Tensor, metric: str = "psnr") -> BlindGuess:
    """Return the score of each guess against each original, and the best.

    Args:
        original: `[N, C, H, W]` in 0..1.
        public: `[M, C, H, W]` in 0..1, without the victims.
        metric: A name of `METRICS`.

    Returns:
        The scores of every guess `[N]`, and for each original the best score and its guess.

    >>> original = torch.stack([torch.full((3, 16, 16), 0.4), torch.full((3, 16, 16), 0.5)])
    >>> guess = blind_guess(original, public=torch.full((1, 3, 16, 16), 0.3))
    >>> {name: score.round().tolist() for name, score in guess.scores.items()}
    {'grey': [20.0, 100.0], 'mean image': [20.0, 14.0], 'own colour': [100.0, 100.0]}
    >>> guess.winner, guess.beaten_by(torch.tensor([30.0, 30.0])).tolist()
    (('own colour', 'grey'), [False, False])
    """
    chosen = METRICS[choice("metric", metric, METRICS)]
    images = guess_images(original, public)
    scores = {name: chosen.function(image, original) for name, image in images.items()}
    table = torch.stack([scores[name] for name in GUESSES])
    best, index = table.max(0) if chosen.higher_is_closer else table.min(0)
    return BlindGuess(metric, scores, best, tuple(GUESSES[i] for i in index.tolist()))
