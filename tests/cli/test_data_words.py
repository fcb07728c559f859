"""The same names of data in every command that takes `--data`."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from refiner.audit import AuditResult, load_labelled_images, load_victims
from refiner.cli import app
from refiner.data import load_data, load_images, load_sample
from refiner.data.data_name import qualified_name
from refiner.errors import DataError
from refiner.federation.flower.client_data import load_client_data


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same twelve images of two classes as a folder, folders of splits, arrays and Parquet."""
    root = tmp_path_factory.mktemp("sources")
    pixels = (load_sample().images[:12] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    labels = np.arange(12) % 2
    encoded = []
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        for place in ("folder", "splits/train"):
            file = root / place / "ab"[label] / f"{number:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(file)
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        encoded.append(stream.getvalue())
    for label in "ab":
        (root / "splits" / "test" / label).mkdir(parents=True)
        Image.fromarray(255 - pixels[0]).save(root / "splits" / "test" / label / "0.png")
    np.savez(root / "plain.npz", images=pixels, labels=labels)
    np.savez(
        root / "split.npz",
        train_images=pixels,
        train_labels=labels,
        test_images=pixels[:2],
        test_labels=[0, 1],
    )
    names = {"folder": "folder", "splits": "splits", "npz": "plain.npz", "npz splits": "split.npz"}
    if importlib.util.find_spec("pyarrow") is not None:
        import pyarrow as arrow
        import pyarrow.parquet

        (root / "shards").mkdir()
        table = arrow.table({"image": encoded, "label": labels})
        pyarrow.parquet.write_table(table, root / "set.parquet")
        pyarrow.parquet.write_table(table, root / "shards" / "train-0.parquet")
        names |= {"parquet": "set.parquet", "parquet folder": "shards"}
    return {name: root / place for name, place in names.items()}


def test_a_path_and_the_same_with_its_kind_are_the_same_everywhere(sources: dict[str, Path]) -> None:
    expected = sorted(load_data(f"npz:{sources['npz']}").images.flatten(1).sum(1).tolist())
    for name, path in sources.items():
        for word in (str(path), f"{name.split()[0].replace('splits', 'folder')}:{path}"):
            for images in (
                load_data(word).images,
                load_images(word) * 255,
                load_victims(word, victims=12).x[:, 0] * 255,
                load_labelled_images(word, limit=99).images * 255,
            ):
                sums = sorted(images.round().long().flatten(1).sum(1).tolist())
                assert sums == expected, word
            assert load_data(word).classes == load_victims(word, victims=1).classes == 2
            labels = load_victims(word, victims=12).y
            assert labels.sum() == 6


def test_a_folder_without_classes_and_an_image_need_no_labels_where_none_are_used(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    flat, single = sources["folder"] / "a", sources["folder"] / "a" / "00.png"
    for word, count in ((str(flat), 6), (f"folder:{flat}", 6), (str(single), 1)):
        assert len(load_images(word)) == count == len(load_labelled_images(word, limit=99).images)
        with pytest.raises(DataError, match=r"no classes|without a label"):
            load_data(word)


def test_the_sample_by_name() -> None:
    assert torch.equal(load_victims("sample", victims=2).x, load_victims(victims=2).x)
    assert torch.equal(load_images("sample"), load_sample().images)


def test_a_dataset_takes_precedence_over_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar10").mkdir()
    assert qualified_name("cifar10") == "cifar10"
    assert qualified_name("./cifar10") == "folder:./cifar10"
    assert qualified_name("a" * 5000) == "a" * 5000


@pytest.mark.hostile
def test_a_client_names_its_classes_for_a_path_too(sources: dict[str, Path]) -> None:
    for name in ("folder", "npz"):
        with pytest.raises(DataError, match=r'^classes: set "classes" in client\.json'):
            load_client_data(str(sources[name]))
    assert load_client_data(str(sources["npz"]), classes=5).classes == 5


def test_every_command_takes_the_same_word(sources: dict[str, Path], tmp_path: Path) -> None:
    word = ("--data", f"folder:{sources['splits']}")
    quick = ("--defense", "none", "--victims", "2", "--iterations", "1", "--size", "12")
    run("audit", *word, *quick, "--model", "mlp", "--out", str(tmp_path / "audit"))
    assert AuditResult.load(next((tmp_path / "audit").glob("*.json"))).victims == 2
    run("refine", *word, "--limit", "1", "--iterations", "1", "--out", str(tmp_path / "refine"))
    short = ("--rounds", "1", "--clients", "2", "--batch", "2", "--size", "12")
    run("train", *word, *short, "--out", str(tmp_path / "train"))
    # They are read, and too few.
    assert "images = 12: expected 200" in run("noise", "predict", *word, code=2).stderr
    assert "images = 12: expected 100" in run("noise", "fit", *word, "--out", "noise.st", code=2).stderr
    run("data", "partition", *word, "--clients", "2")


@pytest.mark.parametrize("command", [("audit",), ("refine",), ("train",), ("noise", "predict")])
def test_missing_data_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    out = () if command[0] == "noise" else ("--out", str(tmp_path / "out"))
    for word in ("absent/", "folder:absent", "npz:absent.npz", "parquet:absent", "arrow:absent"):
        error = run(*command, "--data", word, *out, code=2).stderr
        assert error.startswith("refiner: ") and error.count("\n") == 1 and "absent" in error
