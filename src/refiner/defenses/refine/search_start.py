"""Where the search for robust data starts: at noisy images or, with a warm start, at earlier robust data."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from refiner.core.task import Task
from refiner.defenses.batch import Batch
from refiner.defenses.refine.initialization import initial_robust_data
from refiner.defenses.refine.memory import RobustDataMemory
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.shaped_noise import NaturalNoise

# An odd factor that spreads ids over all 64 bits.
_ID_FACTOR = 0x1E3779B97F4A7C15


class SearchStart(NamedTuple):
    """The start of a search."""

    robust: Tensor
    """Robust data `[V, B, *input]` before the first step."""
    iterations: int
    """The number of steps."""
    remember: Callable[[Tensor], None]
    """Keeps the robust data that the search ends with, for a warm start."""


def search_start(
    settings: RefinerSettings,
    task: Task,
    batch: Batch,
    content_ids: Tensor,
    memory: RobustDataMemory | None,
    statistics: NaturalNoise | None,
) -> SearchStart:
    """Return where the search for a batch starts.

    Args:
        settings: The settings, without a secret: recorded graphs keep them alive.
        task: The model and its loss.
        batch: The victims' batches, with the source of their noise.
        content_ids: An id for each sample's content, `[V, B]`.
        memory: Robust data of earlier uploads; None without a warm start.
        statistics: The covariance of shaped noise; None with another start.
    """
    key = ("refiner start", settings, id(statistics))

    def initialize(x: Tensor, ids: Tensor, words: Tensor) -> tuple[Tensor]:
        return (initial_robust_data(settings, x, ids, words, statistics),)

    if batch.noisy is not None:
        return SearchStart(batch.noisy, settings.iterations, lambda robust: None)
    inputs = [batch.x, content_ids, batch.noise.key.to(batch.x.device)]
    if memory is None:
        (start,) = task.graphs(key, initialize, inputs)
        return SearchStart(start, settings.iterations, lambda robust: None)
    # The content is part of the key: an id whose image was cropped or mirrored is another sample, and old
    # robust data would carry the old image into the new upload.
    keys = (content_ids if batch.ids is None else combined_ids(content_ids, batch.ids)).flatten()
    lookup = memory.lookup(keys, like=batch.x.flatten(0, 1))

    def remember(robust: Tensor) -> None:
        # Values that are not finite are rejected later; remembered, they would spoil all later rounds.
        if bool(robust.isfinite().all()):
            memory.store(keys, robust.flatten(0, 1), lookup)

    if lookup.hits == len(lookup.stored):
        return SearchStart(lookup.values.view_as(batch.x), -(-settings.iterations // 2), remember)
    (start,) = task.graphs(key, initialize, inputs)
    if lookup.hits:
        stored = lookup.stored.view(*batch.x.shape[:2], *(1 for _ in batch.x.shape[2:]))
        start = torch.where(stored, lookup.values.view_as(batch.x), start)
    return SearchStart(start, settings.iterations, remember)


def combined_ids(ids: Tensor, others: Tensor) -> Tensor:
    """Return ids that differ, but for chance, where either of two ids does.

    >>> combined_ids(torch.tensor([1, 1, 2]), torch.tensor([1, 2, 1])).unique().numel()
    3
    """
    return ids ^ (others * _ID_FACTOR)
