"""The table of sources: complete, and each download with a checksum."""

import re

import pytest

from refiner.data import DATASETS, SOURCES
from refiner.data.catalogue import SHORT, find
from refiner.errors import DataError


@pytest.mark.parametrize("name", SOURCES)
def test_each_is_whole(name: str) -> None:
    source = SOURCES[name]
    assert source.classes > 1 and source.size in (28, 32, 64) and source.counts and source.forms
    assert source.licence and source.title
    assert not source.class_names or len(source.class_names) == source.classes
    for item in source.published:
        assert re.fullmatch(r"[0-9a-f]{32}", item.md5) and item.by
        assert not item.url or item.url.split("?")[0].endswith(item.file)
    if name in DATASETS:
        assert (DATASETS[name].classes, DATASETS[name].size) == (source.classes, source.size)
        assert set(DATASETS[name].splits) <= set(source.counts)


def test_names() -> None:
    assert list(SOURCES) == [
        "cifar10",
        "cifar100",
        "svhn",
        "tiny-imagenet",
        "pathmnist",
        "dermamnist",
        "ham10000",
        "lfw",
    ]
    assert DATASETS["path"] is DATASETS["pathmnist"]
    for short, name in SHORT.items():
        assert find(short) == (name, SOURCES[name])


@pytest.mark.parametrize(
    ("name", "near"), [("cifar", "cifar10"), ("tinyimagenet", "tiny-imagenet"), ("ham", "sample"), ("xx", "")]
)
def test_an_unknown_name(name: str, near: str) -> None:
    with pytest.raises(DataError, match=f"data = '{name}': unknown") as told:
        find(name)
    assert "parquet:PATH" in str(told.value)
    if "-" in near or "10" in near:
        assert f"did you mean '{near}'?" in str(told.value)
