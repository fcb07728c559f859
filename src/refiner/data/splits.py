"""The names of splits in a user's own data, and which split is used if none is named."""

from collections.abc import Collection

from refiner.checks import choice

SPLIT_NAMES = ("train", "val", "valid", "validation", "test")
"""The names of splits; if none is asked for, the first that exists is used."""
TEST_SPLITS = ("test", "validation", "valid", "val")
"""The splits on which a model is tested; the first that exists is used."""
ALL = "all"
"""The name of the split of data that have only one."""


def choose_split(split: str | None, existing: Collection[str]) -> str:
    """`split` if it exists; without one the first of `SPLIT_NAMES` that exists, or `ALL` if none does.

    >>> choose_split(None, ["test", "train"]), choose_split("test", ["test", "train"]), choose_split(None, [])
    ('train', 'test', 'all')
    """
    if split is None:
        return next((name for name in SPLIT_NAMES if name in existing), ALL)
    return choice("split", split, existing or [ALL])
