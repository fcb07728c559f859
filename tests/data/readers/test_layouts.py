"""Every layout of a dataset gives the same images and labels."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from refiner.data.catalogue import DATASETS, read_splits
from refiner.data.image_decoding import decode_image
from refiner.data.readers.source_split import SourceSplit
from refiner.errors import DataError

Write = Callable[[Path, Mapping[str, bytes]], Path]
Pixels = np.ndarray[Any, Any]


def images_of(raw: SourceSplit) -> Pixels:
    return np.concatenate(list(raw.blocks()))


def png(pixels: Pixels) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["tar", "zip", "folder", "inner folder"])
def test_cifar10_official(
    kind: str,
    tmp_path: Path,
    cifar10_files: dict[str, bytes],
    sample_pixels: Pixels,
    sample_labels: list[int],
    write_tar: Write,
    write_zip: Write,
    write_files: Write,
) -> None:
    place = {
        "tar": lambda: write_tar(tmp_path / "c.tar.gz", cifar10_files),
        "zip": lambda: write_zip(tmp_path / "c.zip", cifar10_files),
        "folder": lambda: write_files(tmp_path / "c", cifar10_files),
        "inner folder": lambda: write_files(tmp_path / "c", cifar10_files) / "cifar-10-batches-py",
    }[kind]()
    splits = read_splits("cifar10", place)
    assert list(splits) == ["train", "test"]
    assert np.array_equal(images_of(splits["train"]), sample_pixels[:50])
    assert np.array_equal(images_of(splits["test"]), sample_pixels[50:60])
    assert splits["train"].labels.tolist() == sample_labels[:50]
    assert splits["test"].labels.tolist() == sample_labels[50:60]


def test_cifar10_without_a_batch(tmp_path: Path, cifar10_files: dict[str, bytes], write_tar: Write) -> None:
    files = {name: content for name, content in cifar10_files.items() if not name.endswith("_3")}
    with pytest.raises(DataError, match="data_batch_3 missing"):
        read_splits("cifar10", write_tar(tmp_path / "c.tar.gz", files))


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (
            np.zeros((2, 3, 4, 4), np.uint8),
            {"labels": [1, 2]},
            r"no array 'data', expected uint8 \[N, 3072\]",
        ),
        (np.zeros((2, 3, 32, 32), np.uint8), {"fine": [1, 2]}, "no list of integers 'labels'"),
        (np.zeros((2, 3, 32, 32), np.uint8), {"labels": [1]}, "2 images, but 1 labels"),
    ],
)
def test_cifar10_of_another_shape(
    pixels: Pixels,
    labels: dict[str, list[int]],
    message: str,
    tmp_path: Path,
    cifar10_files: dict[str, bytes],
    write_files: Write,
    batch: Callable[..., bytes],
) -> None:
    if pixels.shape[-1] == 4:
        # The header of the made batch says 3,072 a row.
        content = batch(pixels.repeat(8, 2).repeat(8, 3), labels).replace(b"M\x00\x0c", b"M\x00\x06", 1)
        message = "not a complete batch"
    else:
        content = batch(pixels, labels)
    files = {**cifar10_files, "cifar-10-batches-py/data_batch_2": content}
    with pytest.raises(DataError, match=message) as error:
        read_splits("cifar10", write_files(tmp_path, files))
    assert "data_batch_2" in str(error.value)


def test_cifar10_npm(
    tmp_path: Path, sample_pixels: Pixels, sample_labels: list[int], write_tar: Write, write_files: Write
) -> None:
    rows = sample_pixels.transpose(0, 2, 3, 1).reshape(200, 1024, 3)
    files = {f"package/data_batch_{n + 1}.png": png(rows[n * 10 : n * 10 + 10]) for n in range(5)}
    files["package/test_batch.png"] = png(rows[50:60])
    files["package/train_lables.json"] = json.dumps(sample_labels[:50]).encode()
    files["package/test_lables.json"] = json.dumps(sample_labels[50:60]).encode()
    for place in (
        write_tar(tmp_path / "a.tgz", files),
        write_files(tmp_path / "a", files),
        tmp_path / "a" / "package",
    ):
        splits = read_splits("cifar10", place)
        assert np.array_equal(images_of(splits["train"]), sample_pixels[:50])
        assert splits["test"].labels.tolist() == sample_labels[50:60]
    (tmp_path / "a/package/train_lables.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match=r"train_lables\.json: not a list of labels"):
        read_splits("cifar10", tmp_path / "a")


def test_cifar100_official(
    tmp_path: Path, sample_pixels: Pixels, batch: Callable[..., bytes], write_tar: Write
) -> None:
    files = {
        f"cifar-100-python/{split}": batch(
            sample_pixels[cut], {"coarse_labels": [1] * 10, "fine_labels": range(90, 100)}
        )
        for split, cut in (("train", slice(0, 10)), ("test", slice(10, 20)))
    }
    splits = read_splits("cifar100", write_tar(tmp_path / "c.tgz", {**files, "cifar-100-python/meta": b"x"}))
    assert np.array_equal(images_of(splits["test"]), sample_pixels[10:20])
    assert splits["train"].labels.tolist() == list(range(90, 100))


def test_svhn_official(tmp_path: Path, sample_pixels: Pixels) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    for split, cut in (("train", slice(0, 30)), ("test", slice(30, 40))):
        pixels = sample_pixels[cut]
        digits = (np.arange(len(pixels)) % 10 + 1)[:, None].astype(np.uint8)
        arrays = {"X": pixels.transpose(2, 3, 1, 0), "y": digits}
        savemat(tmp_path / f"{split}_32x32.mat", arrays, do_compression=True)
    splits = read_splits("svhn", tmp_path)
    assert np.array_equal(images_of(splits["train"]), sample_pixels[:30])
    # Ten is the authors' zero.
    assert splits["test"].labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    one = read_splits("svhn", tmp_path / "test_32x32.mat")
    assert list(one) == ["test"] and np.array_equal(images_of(one["test"]), sample_pixels[30:40])
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones(3)})
    with pytest.raises(DataError, match=r"test_32x32\.mat: 2 images, but 3 labels"):
        read_splits("svhn", tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2)), "y": np.ones(2)})
    with pytest.raises(DataError, match=r"X is float64 \[32, 32, 3, 2\], expected uint8"):
        read_splits("svhn", tmp_path)
    savemat(tmp_path / "other.mat", {"X": 1})
    with pytest.raises(DataError, match=r"other\.mat: expected a name that begins with train or test"):
        read_splits("svhn", tmp_path / "other.mat")


def test_medmnist_official(tmp_path: Path, sample_pixels: Pixels) -> None:
    pixels = sample_pixels[:12, :, :28, :28].transpose(0, 2, 3, 1)
    arrays = {}
    for split, cut in (("train", slice(0, 6)), ("val", slice(6, 8)), ("test", slice(8, 12))):
        arrays[f"{split}_images"] = pixels[cut]
        arrays[f"{split}_labels"] = np.arange(12, dtype=np.uint8)[cut, None] % 7
    np.savez(tmp_path / "dermamnist.npz", **arrays)
    for place in (tmp_path, tmp_path / "dermamnist.npz"):
        splits = read_splits("dermamnist", place)
        assert list(splits) == ["train", "val", "test"]
        assert np.array_equal(images_of(splits["val"]), sample_pixels[6:8, :, :28, :28])
        assert splits["test"].labels.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_images": np.zeros((2, 28, 28, 3), np.uint8)}, "train has no labels"),
        ({"a": np.zeros(2)}, "contains a, expected train_images"),
        (
            {"test_images": np.zeros((2, 28, 28), np.uint8), "test_labels": np.zeros(2, int)},
            r"test_images is uint8 \[2, 28, 28\]",
        ),
        (
            {"test_images": np.zeros((2, 28, 28, 3), np.uint8), "test_labels": np.zeros(3, int)},
            r"test_labels is int64 \[3\], expected 2 integers",
        ),
    ],
)
def test_medmnist_of_another_shape(arrays: dict[str, Pixels], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_splits("pathmnist", tmp_path)


def test_two_parts_of_medmnist_raise(tmp_path: Path) -> None:
    for name in ("pathmnist_a.npz", "pathmnist_b.npz"):
        np.savez(
            tmp_path / name, test_images=np.zeros((1, 28, 28, 3), np.uint8), test_labels=np.zeros(1, int)
        )
    with pytest.raises(DataError, match=r"pathmnist_a\.npz, pathmnist_b\.npz; expected one of them"):
        read_splits("pathmnist", tmp_path)


@pytest.fixture
def tiny(jpeg: Callable[..., bytes]) -> dict[str, bytes]:
    """Tiny-ImageNet of three classes, numbered by wnids.txt and not by name."""
    wnids = ["n02124075", "n04067472", "n01443537"]
    files = {"wnids.txt": "\n".join(wnids).encode() + b"\n", "words.txt": b"n0\tthing\n"}
    for number, wnid in enumerate(wnids):
        for n in (0, 1, 10, 2):
            files[f"train/{wnid}/images/{wnid}_{n}.JPEG"] = jpeg(number * 20 + n, 64)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
    rows = []
    for n in (0, 1, 2, 10):
        files[f"val/images/val_{n}.JPEG"] = jpeg(100 + n, 64)
        rows.append([f"val_{n}.JPEG", wnids[n % 3], "0", "0", "1", "1"])
    stream = io.StringIO()
    csv.writer(stream, delimiter="\t", lineterminator="\n").writerows(rows)
    files["val/val_annotations.txt"] = stream.getvalue().encode()
    files["test/images/test_0.JPEG"] = jpeg(0, 64)
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}


@pytest.mark.parametrize("kind", ["zip", "folder", "inner folder"])
def test_tiny_imagenet_official(
    kind: str, tiny: dict[str, bytes], tmp_path: Path, write_zip: Write, write_files: Write
) -> None:
    place = write_zip(tmp_path / "t.zip", tiny) if kind == "zip" else write_files(tmp_path / "t", tiny)
    if kind == "inner folder":
        place /= "tiny-imagenet-200"
    splits = read_splits("tiny-imagenet", place)
    assert splits["train"].labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert splits["val"].labels.tolist() == [0, 1, 2, 1]
    # By number: 0, 1, 2, 10.
    encoded = [tiny[f"tiny-imagenet-200/train/n04067472/images/n04067472_{n}.JPEG"] for n in (0, 1, 2, 10)]
    expected = np.stack([decode_image(content, "a").transpose(2, 0, 1) for content in encoded])
    assert np.array_equal(images_of(splits["train"])[4:8], expected)
    assert images_of(splits["val"]).shape == (4, 3, 64, 64)


def test_tiny_imagenet_sorted_into_class_folders(
    tiny: dict[str, bytes], tmp_path: Path, write_files: Write
) -> None:
    files = {name: content for name, content in tiny.items() if "/val/" not in name}
    files["tiny-imagenet-200/val/n01443537/val_7.JPEG"] = tiny["tiny-imagenet-200/val/images/val_0.JPEG"]
    splits = read_splits("tiny-imagenet", write_files(tmp_path, files))
    assert splits["val"].labels.tolist() == [2]


def test_tiny_imagenet_with_a_gap(tiny: dict[str, bytes], tmp_path: Path, write_zip: Write) -> None:
    tiny["tiny-imagenet-200/val/images/val_77.JPEG"] = tiny["tiny-imagenet-200/val/images/val_0.JPEG"]
    with pytest.raises(DataError, match=r"val_77\.JPEG: of class None, expected one of wnids\.txt"):
        read_splits("tiny-imagenet", write_zip(tmp_path / "t.zip", tiny))
    del tiny["tiny-imagenet-200/wnids.txt"]
    with pytest.raises(DataError, match=r"wnids\.txt missing"):
        read_splits("tiny-imagenet", write_zip(tmp_path / "u.zip", tiny))


@pytest.mark.parametrize("kind", ["tar", "folder", "inner folder"])
def test_lfw_official(
    kind: str, tmp_path: Path, jpeg: Callable[..., bytes], write_tar: Write, write_files: Write
) -> None:
    files = {
        "lfw-deepfunneled/Bo_Li/Bo_Li_0001.jpg": jpeg(1, 250),
        "lfw-deepfunneled/Al_Gore/Al_Gore_0001.jpg": jpeg(2, 250),
        "lfw-deepfunneled/Al_Gore/Al_Gore_0002.jpg": jpeg(3, 250),
        "lfw-deepfunneled/Al_Gore/thumb.jpg": jpeg(3, 10),
    }
    place = write_tar(tmp_path / "l.tgz", files) if kind == "tar" else write_files(tmp_path / "l", files)
    if kind == "inner folder":
        place /= "lfw-deepfunneled"
    splits = read_splits("lfw", place)["all"]
    assert splits.labels.tolist() == [0, 0, 1]
    got = images_of(splits)
    assert got.shape == (3, 3, 32, 32)
    # The middle 128 of 250.
    middle = decode_image(files["lfw-deepfunneled/Bo_Li/Bo_Li_0001.jpg"], "a")[61:189, 61:189]
    assert abs(got[2].mean(axis=(1, 2)) - middle.mean(axis=(0, 1))).max() < 1


COUNTS = {
    "cifar100": {"train": 50_000, "test": 10_000},
    "svhn": {"train": 40_000, "test": 10_000},
    "tiny-imagenet": {"val": 10_000},
    "pathmnist": {"test": 718},
    "ham10000": {"train": 8_014, "test": 2_001},
    "lfw": {"all": 13_233},
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_files(name: str, data_dir: Callable[[str], Path]) -> None:
    splits = read_splits(name, data_dir(name))
    assert {split: len(raw.labels) for split, raw in splits.items()} == COUNTS[name]
    for split, raw in splits.items():
        assert raw.labels.min() == 0 and raw.labels.max() == DATASETS[name].classes - 1
        first = next(raw.blocks())
        assert first.dtype == np.uint8 and first.shape[1:] == (3, DATASETS[name].size, DATASETS[name].size), (
            split
        )
        # Neighbouring pixels of a photograph are alike: a wrong layout would tear them apart.
        assert np.abs(np.diff(first[:200].astype(int), axis=3)).mean() < 25


@pytest.mark.parametrize("name", DATASETS)
def test_missing_files_raise_with_all_layouts(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(DataError, match="found, expected ") as caught:
            read_splits(name, place)
        assert all(form in str(caught.value) for form in DATASETS[name].layouts)
