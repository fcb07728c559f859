"""Which split is meant, and which may be."""

import pytest

from refiner.data.splits import chosen_split
from refiner.errors import SettingError


@pytest.mark.parametrize(
    ("held", "meant"),
    [
        (["test", "train"], "train"),
        (["test", "validation"], "validation"),
        (["test", "valid", "extra"], "valid"),
        (["extra", "test"], "test"),
        ([], "all"),
    ],
)
def test_train_or_the_next_best(held: list[str], meant: str) -> None:
    assert chosen_split(None, held) == meant


def test_only_what_is_there() -> None:
    assert chosen_split("extra", ["extra", "train"]) == "extra"
    with pytest.raises(SettingError, match=r"^split = 'val': expected one of 'train', 'validation'$"):
        chosen_split("val", ["train", "validation"])
    with pytest.raises(SettingError, match=r"^split = 'train': expected one of 'all'$"):
        chosen_split("train", [])
