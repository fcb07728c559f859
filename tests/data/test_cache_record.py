"""The folder of the cache on each platform, and broken records."""

import json
import sys
from pathlib import Path

import pytest

from refiner.data.cache_record import CacheRecord, cache_folder, dataset_folder, read_record
from refiner.errors import DataError


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x/cache"}, "/x/cache/refiner"),
        ("linux", {}, "HOME/.cache/refiner"),
        ("linux", {"XDG_CACHE_HOME": ""}, "HOME/.cache/refiner"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "HOME/.cache/refiner"),
        ("darwin", {"XDG_CACHE_HOME": "/x/cache"}, "HOME/Library/Caches/refiner"),
        ("win32", {"LOCALAPPDATA": "/x/local"}, "/x/local/refiner/Cache"),
        ("win32", {}, "HOME/AppData/Local/refiner/Cache"),
        ("linux", {"REFINER_CACHE": "~/own", "XDG_CACHE_HOME": "/x/cache"}, "HOME/own"),
        ("win32", {"REFINER_CACHE": "/own"}, "/own"),
    ],
)
def test_cache_folder_of_each_platform(
    platform: str, environment: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REFINER_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix() == expected.replace("HOME", str(tmp_path))


def test_missing_record_is_none() -> None:
    assert read_record("cifar10") is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"name": "cifar10", "source": "", "classes": 10, "splits": {}, "class_names": []}),
        json.dumps({"name": "cifar10", "splits": {"train": {"shape": [3]}}, "class_names": []}),
        json.dumps({"name": "cifar10", "splits": [], "class_names": []}),
        json.dumps(
            {
                "name": "svhn",
                "source": "",
                "classes": 10,
                "splits": {"a": {"count": 1, "shape": [3], "images_sha256": "", "labels_sha256": ""}},
                "class_names": [],
            }
        ),
    ],
)
def test_broken_record_raises(content: str) -> None:
    dataset_folder("cifar10").mkdir(parents=True)
    (dataset_folder("cifar10") / "about.json").write_text(content)
    with pytest.raises(
        DataError, match=r"cifar10: damaged, about\.json .*refiner data fetch cifar10 --replace"
    ):
        read_record("cifar10")


def test_record_is_frozen() -> None:
    with pytest.raises(AttributeError):
        CacheRecord("a", "b", 1, {}).name = "c"  # type: ignore[misc]
