"""The splits of a user's own data: how they are called, and which is meant where none is named."""

from collections.abc import Collection

from refiner.checks import choice

SPLITS = ("train", "val", "valid", "validation", "test")
"""The names by which a part is known for a split; the first that is there is meant where none is named."""
TESTS = ("test", "validation", "valid", "val")
"""Those on which a training is tested: the first that is there."""
ALL = "all"


def chosen_split(split: str | None, held: Collection[str]) -> str:
    """The split that is asked for; without one the first of `SPLITS` that is there, or all.

    >>> chosen_split(None, ["test", "train"]), chosen_split("test", ["test", "train"]), chosen_split(None, [])
    ('train', 'test', 'all')
    """
    if split is None:
        return next((name for name in SPLITS if name in held), ALL)
    return choice("split", split, held or [ALL])
