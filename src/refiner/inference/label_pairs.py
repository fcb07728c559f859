"""Members and non-members of one dataset that can be told apart by nothing but training."""

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError


def pair_by_label(
    x: Tensor, y: Tensor, clients: int, batch: int, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide samples at random into members and non-members with the same labels.

    Samples of the same class are paired, and of each pair one is a member: members and non-members can be
    told apart by nothing but training.

    Args:
        x: Samples `[N, *input]`.
        y: Labels `[N]`.
        clients: Number of clients V.
        batch: Members of each client, B; as many are its non-members.
        seed: Seed of the draw.

    Returns:
        Members `[V, B, *input]`, non-members of the same shape, and the labels `[V, B]` of both.

    Raises:
        DataError: There are too few pairs.

    >>> members, others, labels = pair_by_label(torch.rand(10, 3), torch.arange(10) % 2, clients=2, batch=2)
    >>> members.shape, others.shape, labels.shape
    (torch.Size([2, 2, 3]), torch.Size([2, 2, 3]), torch.Size([2, 2]))
    """
    generator = torch.Generator().manual_seed(checks.integer("seed", seed, 0))
    pairs = []
    for label in torch.unique(y).tolist():
        of_class = (y == label).nonzero()[:, 0].cpu()
        order = of_class[torch.randperm(len(of_class), generator=generator)]
        pairs.append(order[: len(order) // 2 * 2].view(-1, 2))
    drawn = torch.cat(pairs)
    count = checks.integer("victims", clients, 1) * checks.integer("batch", batch, 1)
    if len(drawn) < count:
        most = len(drawn) // batch
        expected = f"at most {most}: {len(y)} images make {len(drawn)} pairs of a class, {batch} a client"
        raise DataError(field="victims", value=clients, expected=expected)
    drawn = drawn[torch.randperm(len(drawn), generator=generator)[:count]].to(x.device)
    shape = (clients, batch)
    members, others = (x[drawn[:, side]].view(*shape, *x.shape[1:]) for side in (0, 1))
    return members, others, y[drawn[:, 0].to(y.device)].view(shape)
