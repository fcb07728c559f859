"""Public images whose attribute is known, and the clients that an attacker simulates with them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.data import batches_of_mixed_values, batches_of_one_value
from refiner.errors import DataError


@dataclass(frozen=True, eq=False)
class PublicAttributes:
    """The attribute of every public image, and the person or other group that it belongs to.

    Args:
        values: int64 `[M]`, 0 or 1; images with another value are not used.
        groups: int64 `[M]`; by default every image is a group of its own.

    Raises:
        DataError: The tensors do not fit each other, or all images have one value.

    >>> PublicAttributes(torch.tensor([1, 1, -1]))
    Traceback (most recent call last):
    refiner.errors.DataError: public attribute = 1: expected images with both values, 0 and 1
    """

    values: Tensor
    groups: Tensor

    def __init__(self, values: Tensor, groups: Tensor | None = None) -> None:
        groups = torch.arange(len(values)) if groups is None else groups
        for field, tensor in (("public attribute", values), ("public groups", groups)):
            if tensor.dtype != torch.long or tensor.shape != (len(values),):
                raise DataError(field=field, value=tensor, expected=f"torch.int64 [{len(values)}]")
        known = {0, 1} & set(values.tolist())
        if len(known) < 2:
            value = known.pop() if known else None
            raise DataError(
                field="public attribute", value=value, expected="images with both values, 0 and 1"
            )
        object.__setattr__(self, "values", values.cpu())
        object.__setattr__(self, "groups", groups.cpu())

    def split(self, share: float, seed: int) -> tuple["PublicAttributes", "PublicAttributes"]:
        """Return the attributes with a share of the groups of each value held out, and those groups alone.

        Images of the other part have the value −1, so that numbers of images stay the same. No group is in
        both parts.

        Args:
            share: The share of the groups to hold out, at least one of each value.
            seed: Seed of the choice.

        Raises:
            DataError: A value has fewer than two groups.
        """
        generator = torch.Generator().manual_seed(seed)
        held_out = torch.zeros(len(self.values), dtype=torch.bool)
        for value in (0, 1):
            # A group with both values goes with the first.
            own = self.groups[(self.values == value) & ~held_out]
            groups = torch.tensor(sorted(set(own.tolist())), dtype=torch.long)
            if len(groups) < 2:
                raise DataError(
                    field="public",
                    value=len(groups),
                    expected=f"at least two groups, such as people, whose attribute is {value}",
                )
            order = groups[torch.randperm(len(groups), generator=generator)]
            held_out |= torch.isin(self.groups, order[: max(1, round(share * len(groups)))])
        return (
            PublicAttributes(torch.where(held_out, -1, self.values), self.groups),
            PublicAttributes(torch.where(held_out, self.values, -1), self.groups),
        )

    def clients(self, count: int, batch: int, *, shares: bool, seed: int) -> list[Tensor]:
        """Return the batches of simulated clients, in passes over the public images.

        Args:
            count: The number of clients, at least.
            batch: Images of each.
            shares: Whether batches are mixed; else all images of a batch have the same value, and there are
                equally many batches of both.
            seed: Seed of the draws.

        Returns:
            Passes `[n, B]` of images' numbers; see `draw_batches` for why they are apart.

        Raises:
            DataError: There are too few images for one client of each value.
        """
        passes: list[Tensor] = []
        while sum(map(len, passes)) < count:
            pass_seed = seed + len(passes)
            if shares:
                drawn = batches_of_mixed_values(self.values, self.groups, batch, seed=pass_seed)
            else:
                batches, values = batches_of_one_value(self.values, self.groups, batch, seed=pass_seed)
                fewest = min(int((values == value).sum()) for value in (0, 1))
                drawn = torch.cat([batches[values == value][:fewest] for value in (0, 1)])
            if not len(drawn):
                known = [int((self.values == value).sum()) for value in (0, 1)]
                expected = f"images for batches of {batch} with each value of the attribute"
                raise DataError(field="public", value=f"{known[0]} and {known[1]} images", expected=expected)
            passes.append(drawn)
        return passes

    def targets(self, passes: list[Tensor]) -> Tensor:
        """Return the share of images with value 1 in every batch, `[n]` over all passes."""
        return self.values[torch.cat(passes)].double().mean(1).float()
