"""Partitions: how the samples of a dataset are split across clients."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from refiner.checks import integer, number, unknown_name, wrong
from refiner.errors import DataError

_MAX_DRAWS = 1000
_EXPECTED = "iid or dirichlet:CONCENTRATION"


def iid(labels: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
    """Splits the samples across clients at random, in equal parts.

    Args:
        labels: int64 [N].
        clients: The number of clients, at most N.
        seed: Of the shuffle, in [0, 2³² − 1].

    Returns:
        The indices of each client's samples, int64 and sorted. The sizes differ by at most one.

    >>> [len(part) for part in iid(torch.zeros(10, dtype=torch.int64), 3)]
    [4, 3, 3]
    """
    label_array = _check_labels(labels, clients)
    order = _generator(seed).permutation(len(label_array))
    return [_sorted_indices(part) for part in np.array_split(order, clients)]


def dirichlet(labels: Tensor, clients: int, concentration: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Splits the samples across clients with label skew.

    Each class is split in proportions drawn from a Dirichlet distribution with the same concentration for all
    clients. A draw that leaves a client without samples is repeated completely, up to 1,000 times.

    Args:
        labels: int64 [N].
        clients: The number of clients, at most N.
        concentration: In [1e-4, 1e6]. Large values approach equal parts; with small values few clients have
            most samples of a class.
        seed: Of the draws, in [0, 2³² − 1].

    Returns:
        The indices of each client's samples, int64 and sorted; every sample belongs to one client.

    Raises:
        DataError: If every draw leaves a client without samples.

    >>> labels = torch.arange(1000) % 10
    >>> parts = dirichlet(labels, 4, concentration=0.5)
    >>> sum(len(part) for part in parts), len(torch.cat(parts).unique())
    (1000, 1000)
    """
    label_array = _check_labels(labels, clients)
    # NumPy's draws are finite in this range, and both ends are close to their limits.
    number("concentration", concentration, 1e-4, 1e6)
    generator = _generator(seed)
    classes, sizes = np.unique(label_array, return_counts=True)
    for _ in range(_MAX_DRAWS):
        proportions = generator.dirichlet(np.full(clients, concentration), size=len(classes))
        cuts = np.rint(proportions.cumsum(axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes
        counts = np.diff(cuts, axis=1, prepend=0)
        if (counts.sum(axis=0) > 0).all():
            break
    else:
        expected = "a larger value or fewer clients"
        raise DataError(
            f"concentration = {concentration:g}: leaves one of {clients} clients without a sample in each of "
            f"{_MAX_DRAWS:,} draws over {len(classes)} classes; expected {expected}",
            field="concentration",
            value=concentration,
            expected=expected,
        )
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label, cut in zip(classes, cuts, strict=True):
        members = generator.permutation(np.flatnonzero(label_array == label))
        for part, share in zip(parts, np.split(members, cut[:-1]), strict=True):
            part.append(share)
    return [_sorted_indices(np.concatenate(part)) for part in parts]


def make_partition(text: str, labels: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
    """The partition that `text` describes.

    Args:
        text: `iid`, `dirichlet` or `dirichlet:CONCENTRATION`.
        labels: int64 [N].
        clients: The number of clients, at most N.
        seed: Of the draws, in [0, 2³² − 1].

    Returns:
        The indices of each client's samples, int64 and sorted.

    Raises:
        SettingError: If `text` has another form.

    >>> [len(part) for part in make_partition("iid", torch.zeros(4, dtype=torch.int64), 2)]
    [2, 2]
    >>> make_partition("dirichlet:many", torch.zeros(4, dtype=torch.int64), 2)
    Traceback (most recent call last):
    refiner.errors.SettingError: partition = 'dirichlet:many': expected iid or dirichlet:CONCENTRATION
    """
    kind, colon, value = text.partition(":")
    if kind == "iid" and not colon:
        return iid(labels, clients, seed)
    if kind == "dirichlet":
        try:
            concentration = float(value) if colon else 1.0
        except ValueError:
            raise wrong("partition", text, _EXPECTED) from None
        return dirichlet(labels, clients, concentration, seed)
    if kind == "iid":
        raise wrong("partition", text, _EXPECTED)
    raise unknown_name(kind, ["iid", "dirichlet"], "partition")


def label_counts(labels: Tensor, parts: list[Tensor], classes: int) -> Tensor:
    """The number of samples of each class that each client has.

    Args:
        labels: int64 [N].
        parts: The indices of each client's samples.
        classes: The number of classes.

    Returns:
        int64 [clients, classes].

    >>> label_counts(torch.tensor([0, 1, 1]), [torch.tensor([0, 1]), torch.tensor([2])], 2).tolist()
    [[1, 1], [0, 1]]
    """
    return torch.stack([labels[part].bincount(minlength=classes) for part in parts])


def _check_labels(labels: Tensor, clients: int) -> NDArray[np.int64]:
    if labels.dim() != 1 or labels.dtype != torch.int64 or not len(labels):
        raise DataError(
            f"labels: {labels.dtype} {list(labels.shape)}, expected torch.int64 [N]",
            field="labels",
            value=labels,
            expected="torch.int64 [N]",
        )
    if isinstance(clients, int) and clients > len(labels):
        raise wrong("clients", clients, f"an integer in [1, {len(labels)}], the number of samples")
    integer("clients", clients, 1)
    label_array: NDArray[np.int64] = labels.cpu().numpy()
    return label_array


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(integer("seed", seed, 0, 2**32 - 1))


def _sorted_indices(part: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.sort(part))
