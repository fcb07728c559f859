"""Batches of clients who differ in an attribute: whole groups, one value or a mixture."""

import pytest
import torch

from refiner.data import batches_of_mixed_values, batches_of_one_value
from refiner.errors import DataError, SettingError

# Groups of one to seven images; every third group has value 1, and one image is unknown.
GROUPS = torch.repeat_interleave(torch.arange(60), torch.arange(60) % 7 + 1)
VALUES = (GROUPS % 3 == 0).long()
VALUES[5] = -1


def groups_of(batches: torch.Tensor) -> list[set[int]]:
    return [set(row) for row in GROUPS[batches].tolist()]


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_batch_has_one_value_and_groups_of_its_own(size: int) -> None:
    batches, values = batches_of_one_value(VALUES, GROUPS, size, seed=3)
    assert len(batches) == len(values) and set(values.tolist()) == {0, 1}
    assert bool((VALUES[batches] == values[:, None]).all())
    sets = groups_of(batches)
    assert sum(map(len, sets)) == len(set.union(*sets))
    assert len(batches.unique()) == batches.numel()


def test_shares_are_spread_from_none_to_all() -> None:
    values, groups = torch.arange(4000) % 2, torch.arange(4000)
    batches = batches_of_mixed_values(values, groups, 4, seed=0)
    shares = values[batches].sum(1)
    assert len(batches) > 900 and len(batches.unique()) == batches.numel()
    assert bool(((shares.bincount(minlength=5) / len(batches) - 0.2).abs() < 0.05).all())
    mixed = batches_of_mixed_values(VALUES, GROUPS, 4, seed=0)
    sets = groups_of(mixed)
    assert sum(map(len, sets)) == len(set.union(*sets)) and 5 not in mixed.tolist()


def test_a_seed_determines_the_batches() -> None:
    one, again, other = (batches_of_one_value(VALUES, GROUPS, 3, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_too_few_images_give_no_batches_and_wrong_tensors_raise() -> None:
    assert batches_of_one_value(VALUES[:3], GROUPS[:3], 9, seed=0)[0].shape == (0, 9)
    assert batches_of_mixed_values(VALUES[:3], GROUPS[:3], 9, seed=0).shape == (0, 9)
    with pytest.raises(DataError, match=r"groups = int64 tensor of shape \[2\]: expected torch.int64 \[3\]"):
        batches_of_one_value(VALUES[:3], GROUPS[:2], 2, seed=0)
    with pytest.raises(SettingError, match="size = 0"):
        batches_of_mixed_values(VALUES, GROUPS, 0, seed=0)
