"""How many bytes the upload of several defences in a row takes: zeros and levels that are left at the end."""

from collections.abc import Mapping, Sequence

import torch

from refiner.defenses.base import Defense
from refiner.defenses.none import NoDefense
from refiner.defenses.pruning import Pruning, _index_bytes
from refiner.defenses.quantisation import Quantisation


def packed_bytes(parts: Sequence[Defense], shapes: Mapping[str, torch.Size]) -> int:
    """Pruned entries stay zero under a quantisation that has a level for zero, and levels survive pruning.

    Any other defence is taken to undo both, so that the upload is as that one, or what follows it, packs it.

    >>> shapes = {"weight": torch.Size([1000])}
    >>> packed_bytes([Pruning(rate=0.9), Quantisation(bits=8)], shapes)
    304
    """
    pruned: Pruning | None = None
    levels: Quantisation | None = None
    last = parts[0]
    for part in parts:
        if isinstance(part, NoDefense):
            continue
        last = part
        if isinstance(part, Pruning):
            pruned = part if pruned is None or part.rate > pruned.rate else pruned
            levels = levels if levels is not None and levels.bits > 1 else None
        elif isinstance(part, Quantisation):
            pruned, levels = pruned if part.bits > 1 else None, part
        else:
            pruned = levels = None
    if pruned is not None and levels is not None:
        return _both(pruned, levels, shapes)
    return (pruned or levels or last).wire_bytes(shapes)


def _both(pruned: Pruning, levels: Quantisation, shapes: Mapping[str, torch.Size]) -> int:
    """A level and an index for each kept entry, or a level for every entry if that is less; the scales."""
    counts = [shape.numel() for shape in shapes.values()]
    groups = [sum(counts)] if pruned.scope == "global" else counts
    kept = [(n, n - pruned._count(n)) for n in groups]
    sparse = sum(-(-levels.bits * many // 8) + many * _index_bytes(n) for n, many in kept) + 4 * len(counts)
    return min(sparse, levels.wire_bytes(shapes))
