"""Which split is used if none is named, and which can be chosen."""

import pytest

from refiner.data.splits import choose_split
from refiner.errors import SettingError


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        (["test", "train"], "train"),
        (["test", "validation"], "validation"),
        (["test", "valid", "extra"], "valid"),
        (["extra", "test"], "test"),
        ([], "all"),
    ],
)
def test_default_split_is_train_or_the_first_that_exists(existing: list[str], expected: str) -> None:
    assert choose_split(None, existing) == expected


def test_a_split_that_does_not_exist_raises() -> None:
    assert choose_split("extra", ["extra", "train"]) == "extra"
    with pytest.raises(SettingError, match=r"^split = 'val': expected one of 'train', 'validation'$"):
        choose_split("val", ["train", "validation"])
    with pytest.raises(SettingError, match=r"^split = 'train': expected one of 'all'$"):
        choose_split("train", [])
