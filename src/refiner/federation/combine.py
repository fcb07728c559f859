"""How a server combines the updates of a round: their mean, or a rule that a few hostile clients move little.

The rules are those of Flower's strategies FedMedian, FedTrimmedAvg and MultiKrum, and equal to them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.federation.local import weighted_mean
from refiner.registry import make_by_name


class Rule(Protocol):
    """Combines the model updates of a round's clients; see `RULES`."""

    name: ClassVar[str]

    def combine(self, updates: Tensor, samples: Sequence[int]) -> Tensor:
        """The combined update `[N]` of updates `[K, N]` of clients with these numbers of samples."""


@dataclass(frozen=True)
class Mean:
    """The mean, weighted by samples. One client can move it anywhere within the norm bound.

    >>> Mean().combine(torch.tensor([[0.0], [4.0]]), [1, 3]).tolist()
    [3.0]
    """

    name: ClassVar[str] = "mean"

    def combine(self, updates: Tensor, samples: Sequence[int]) -> Tensor:
        """The weighted mean `[N]` of updates `[K, N]`."""
        return weighted_mean(updates, samples)


@dataclass(frozen=True)
class Median:
    """The median of every value (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018).

    >>> Median().combine(torch.tensor([[0.0], [1.0], [9.0e9]]), [1, 1, 1]).tolist()
    [1.0]
    """

    name: ClassVar[str] = "median"

    def combine(self, updates: Tensor, samples: Sequence[int]) -> Tensor:
        """The median `[N]` of updates `[K, N]`, without weights."""
        middle = len(updates) - 1
        return updates.sort(0).values[[middle // 2, (middle + 1) // 2]].mean(0)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every value without its smallest and largest ones (Yin et al., ICML 2018).

    Args:
        trim: Share of the clients that is left out at each end.

    >>> TrimmedMean(trim=0.3).combine(torch.tensor([[-5.0], [1.0], [2.0], [9.0e9]]), [1] * 4).tolist()
    [1.5]
    """

    name: ClassVar[str] = "trimmed-mean"

    trim: float = 0.2

    def __post_init__(self) -> None:
        if isinstance(self.trim, bool) or not isinstance(self.trim, int | float) or not 0 <= self.trim < 0.5:
            raise checks.wrong("trim", self.trim, "a number in [0, 0.5)")

    def combine(self, updates: Tensor, samples: Sequence[int]) -> Tensor:
        """The trimmed mean `[N]` of updates `[K, N]`, without weights."""
        cut = int(self.trim * len(updates))
        return updates.sort(0).values[cut : len(updates) - cut].mean(0)


@dataclass(frozen=True)
class Krum:
    """The mean of the updates nearest to their neighbours (Blanchard et al., NeurIPS 2017).

    Args:
        hostile: Number of hostile clients that are assumed. The guarantee needs 2 · hostile + 3 clients.
        selected: Number of updates that are averaged, weighted by samples; more than 1 is Multi-Krum.

    >>> Krum().combine(torch.tensor([[0.0], [0.1], [0.1], [0.2], [9.0e9]]), [1] * 5).tolist()
    [0.10000000149011612]
    """

    name: ClassVar[str] = "krum"

    hostile: int = 1
    selected: int = 1

    def __post_init__(self) -> None:
        checks.integer("hostile", self.hostile, 0)
        checks.integer("selected", self.selected, 1)

    def combine(self, updates: Tensor, samples: Sequence[int]) -> Tensor:
        """The mean `[N]` of the selected ones of updates `[K, N]`."""
        wide = updates.double()
        squared = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square()
        neighbours = max(1, len(updates) - self.hostile - 2)
        # The first of a client's neighbours is itself.
        scores = squared.sort(1).values[:, 1 : neighbours + 1].sum(1)
        chosen = scores.argsort(stable=True)[: self.selected].tolist()
        return Mean().combine(updates[chosen], [samples[position] for position in chosen])


RULES: dict[str, Callable[..., Rule]] = {kind.name: kind for kind in (Mean, Median, TrimmedMean, Krum)}
"""Every rule by name."""


def make_rule(text: str) -> Rule:
    """A rule from its name in `RULES`, with settings: `krum:hostile=2`.

    Args:
        text: `NAME` or `NAME:setting=value,setting=value`.

    Returns:
        The rule.

    Raises:
        DataError: If the name or a setting is unknown.
        SettingError: If a value lies outside its range.

    >>> make_rule("trimmed-mean:trim=0.5")
    Traceback (most recent call last):
    refiner.errors.SettingError: trim = 0.5: expected a number in [0, 0.5)
    """
    return make_by_name(RULES, "combine", text)


def shorten(update: Tensor, max_norm: float) -> tuple[Tensor, bool]:
    """An update `[N]` with a norm of at most `max_norm`, and whether it was longer.

    The norm is computed in float64, where that of finite float32 values can't overflow.

    >>> shorten(torch.tensor([3.0e38, 0.0]), max_norm=2.0)
    (tensor([2., 0.]), True)
    """
    norm = float(update.double().norm())
    if norm <= max_norm:
        return update, False
    return (update.double() * (max_norm / norm)).to(update.dtype), True
