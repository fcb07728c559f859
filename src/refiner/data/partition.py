"""Partitions: which client has which samples."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from refiner.checks import integer, nearest, number, wrong
from refiner.errors import DataError

_DRAWS = 1000
_KINDS = ("iid", "dirichlet:CONCENTRATION")


def iid(labels: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
    """Equal shares at random, sizes at most one apart: the indices of each client, int64 and sorted.

    >>> [len(part) for part in iid(torch.zeros(10, dtype=torch.int64), 3)]
    [4, 3, 3]
    """
    held = _checked(labels, clients)
    order = _draws(seed).permutation(len(held))
    return [_indices(part) for part in np.array_split(order, clients)]


def dirichlet(labels: Tensor, clients: int, concentration: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Label skew: each class is split over the clients in proportions of its own, drawn from a Dirichlet.

    All clients have the same `concentration`: large ones come near equal shares, small ones give a class to
    few clients. Every sample goes to one client. A draw that leaves a client without a sample is drawn anew,
    all of it, up to 1,000 times. The indices of each client, int64 and sorted.

    >>> labels = torch.arange(1000) % 10
    >>> parts = dirichlet(labels, 4, concentration=0.5)
    >>> sum(len(part) for part in parts), len(torch.cat(parts).unique())
    (1000, 1000)
    """
    held = _checked(labels, clients)
    # NumPy's draws stay finite in this range, and both of its ends are as good as their limits.
    number("concentration", concentration, 1e-4, 1e6)
    draws = _draws(seed)
    classes, sizes = np.unique(held, return_counts=True)
    for _ in range(_DRAWS):
        shares = draws.dirichlet(np.full(clients, concentration), size=len(classes))
        cuts = np.rint(shares.cumsum(axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes
        counts = np.diff(cuts, axis=1, prepend=0)
        if (counts.sum(axis=0) > 0).all():
            break
    else:
        raise DataError(
            f"concentration = {concentration:g}: leaves one of {clients} clients without a sample in each of "
            f"{_DRAWS:,} draws over {len(classes)} classes; expected a larger one, or fewer clients"
        )
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for which, cut in zip(classes, cuts, strict=True):
        members = draws.permutation(np.flatnonzero(held == which))
        for part, share in zip(parts, np.split(members, cut[:-1]), strict=True):
            part.append(share)
    return [_indices(np.concatenate(part)) for part in parts]


def make_partition(text: str, labels: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
    """The partition that `text` names: `iid`, `dirichlet` or `dirichlet:0.5`.

    >>> [len(part) for part in make_partition("iid", torch.zeros(4, dtype=torch.int64), 2)]
    [2, 2]
    >>> make_partition("dirichlet:many", torch.zeros(4, dtype=torch.int64), 2)
    Traceback (most recent call last):
    refiner.errors.SettingError: partition = 'dirichlet:many': expected iid or dirichlet:CONCENTRATION
    """
    kind, colon, rest = text.partition(":")
    if kind == "iid" and not colon:
        return iid(labels, clients, seed)
    if kind == "dirichlet":
        try:
            concentration = float(rest) if colon else 1.0
        except ValueError:
            raise wrong("partition", text, " or ".join(_KINDS)) from None
        return dirichlet(labels, clients, concentration, seed)
    if kind == "iid":
        raise wrong("partition", text, " or ".join(_KINDS))
    raise nearest(kind, ["iid", "dirichlet"], "partition")


def label_counts(labels: Tensor, parts: list[Tensor], classes: int) -> Tensor:
    """How many samples of each class each client has, int64 [clients, classes].

    >>> label_counts(torch.tensor([0, 1, 1]), [torch.tensor([0, 1]), torch.tensor([2])], 2).tolist()
    [[1, 1], [0, 1]]
    """
    return torch.stack([labels[part].bincount(minlength=classes) for part in parts])


def _checked(labels: Tensor, clients: int) -> NDArray[np.int64]:
    if labels.dim() != 1 or labels.dtype != torch.int64 or not len(labels):
        raise DataError(f"labels: {labels.dtype} {list(labels.shape)}, expected torch.int64 [N]")
    if isinstance(clients, int) and clients > len(labels):
        raise wrong("clients", clients, f"an integer in [1, {len(labels)}], there are {len(labels)} samples")
    integer("clients", clients, 1)
    held: NDArray[np.int64] = labels.cpu().numpy()
    return held


def _draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(integer("seed", seed, 0, 2**32 - 1))


def _indices(part: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.sort(part))
