"""The blind guess: what someone who saw no gradient scores, so that a low number can't pass for privacy."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.checks import choice
from refiner.errors import DataError
from refiner.metrics.measures import MEASURES
from refiner.metrics.pairs import check_images

GUESSES = ("grey", "mean image", "own colour")


@dataclass(frozen=True, eq=False)
class BlindGuess:
    """What each guess scores against each original, and the best of them; all `[N]`."""

    metric: str
    scores: Mapping[str, Tensor]
    best: Tensor
    winner: tuple[str, ...]
    """The name of each victim's best guess."""

    def beaten_by(self, scores: Tensor) -> Tensor:
        """Which reconstructions, by the same metric, are nearer than the best guess: bool `[N]`."""
        if scores.shape != self.best.shape:
            raise DataError(f"scores: shape {list(scores.shape)}, expected {list(self.best.shape)}")
        return scores > self.best if MEASURES[self.metric].higher_is_nearer else scores < self.best


def guesses(original: Tensor, public: Tensor) -> dict[str, Tensor]:
    """As images: a flat grey of 0.5, the mean of `public [M, C, H, W]`, each original's own mean colour.

    The third is more than a blind attacker knows, and about as much as a gradient gives away for nothing.
    `public` must not hold the victims.

    >>> found = guesses(torch.zeros(2, 3, 8, 8), torch.ones(5, 3, 8, 8))
    >>> [(name, images.unique().item()) for name, images in found.items()]
    [('grey', 0.5), ('mean image', 1.0), ('own colour', 0.0)]
    """
    original, public = check_images("original", original), check_images("public", public)
    if public.shape[1:] != original.shape[1:]:
        raise DataError(
            f"public: images of shape {list(public.shape[1:])}, "
            f"expected {list(original.shape[1:])} as the originals have"
        )
    return {
        "grey": torch.full_like(original, 0.5),
        "mean image": public.mean(0).to(original).expand_as(original),
        "own colour": original.mean((2, 3), keepdim=True).expand_as(original),
    }


def best_guesses(original: Tensor, public: Tensor) -> Tensor:
    """Of each original the guess with the best PSNR, as an image: `[N, C, H, W]`.

    For what an image tells alone, as its share of noise, where no guess is the nearest one.

    >>> original = torch.stack([torch.full((3, 16, 16), 0.4), torch.full((3, 16, 16), 0.5)])
    >>> best_guesses(original, public=torch.full((1, 3, 16, 16), 0.3)).mean((1, 2, 3)).tolist()
    [0.4..., 0.5...]
    """
    found, made = blind_guess(original, public), guesses(original, public)
    return torch.stack([made[name][place] for place, name in enumerate(found.winner)])


def blind_guess(original: Tensor, public: Tensor, metric: str = "psnr") -> BlindGuess:
    """Each guess's score against each of `original [N, C, H, W]`, and the best, by `metric` of `MEASURES`.

    >>> original = torch.stack([torch.full((3, 16, 16), 0.4), torch.full((3, 16, 16), 0.5)])
    >>> found = blind_guess(original, public=torch.full((1, 3, 16, 16), 0.3))
    >>> {name: score.round().tolist() for name, score in found.scores.items()}
    {'grey': [20.0, 100.0], 'mean image': [20.0, 14.0], 'own colour': [100.0, 100.0]}
    >>> found.winner, found.beaten_by(torch.tensor([30.0, 30.0])).tolist()
    (('own colour', 'grey'), [False, False])
    """
    measure = MEASURES[choice("metric", metric, MEASURES)]
    scores = {name: measure.compare(guess, original) for name, guess in guesses(original, public).items()}
    table = torch.stack([scores[name] for name in GUESSES])
    best, place = table.max(0) if measure.higher_is_nearer else table.min(0)
    return BlindGuess(metric, scores, best, tuple(GUESSES[i] for i in place.tolist()))
