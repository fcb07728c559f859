"""The catalogue is complete, and every download has a checksum."""

import re

import pytest

from refiner.data import DATASETS
from refiner.data.catalogue import ALIASES, find_dataset
from refiner.errors import DataError


@pytest.mark.parametrize("name", DATASETS)
def test_entries_are_complete(name: str) -> None:
    info = DATASETS[name]
    assert info.classes > 1 and info.size in (28, 32, 64) and info.counts and info.layouts
    assert info.licence and info.title
    assert not info.class_names or len(info.class_names) == info.classes
    for file in info.published:
        assert re.fullmatch(r"[0-9a-f]{32}", file.md5) and file.publisher
        assert not file.url or file.url.split("?")[0].endswith(file.name)


def test_names_and_aliases() -> None:
    assert list(DATASETS) == [
        "cifar10",
        "cifar100",
        "svhn",
        "tiny-imagenet",
        "pathmnist",
        "dermamnist",
        "ham10000",
        "lfw",
    ]
    for alias, name in ALIASES.items():
        assert find_dataset(alias) == (name, DATASETS[name])


@pytest.mark.parametrize(
    ("name", "near"), [("cifar", "cifar10"), ("tinyimagenet", "tiny-imagenet"), ("ham", "sample"), ("xx", "")]
)
def test_unknown_name_raises_with_a_similar_one(name: str, near: str) -> None:
    with pytest.raises(DataError, match=f"data = '{name}': unknown") as caught:
        find_dataset(name)
    assert "parquet:PATH" in str(caught.value)
    if "-" in near or "10" in near:
        assert f"did you mean '{near}'?" in str(caught.value)
