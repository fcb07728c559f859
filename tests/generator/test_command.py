"""`refiner gan` as a user meets it."""

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from refiner.cli import app
from refiner.data import load_sample
from refiner.generator import Generator

SMALL = ("--epochs", "2", "--batch", "4", "--width", "4", "--discriminator-width", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CIFAR-10 folder with eight labelled images, in rows of 1,024 pixels."""
    root, sample = tmp_path_factory.mktemp("cifar10"), load_sample()
    rows = (sample.images[:8] * 255).round().byte().permute(0, 2, 3, 1).reshape(8, 1024, 3)
    sheet = Image.new("RGB", (1024, 10_000))
    sheet.paste(Image.fromarray(rows.numpy()))
    sheet.save(root / "data_batch_1.png", compress_level=1)
    (root / "train_lables.json").write_text(json.dumps(sample.labels[:8].tolist()))
    return root


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["gan", *map(str, words)])


def test_train_writes_what_sample_takes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    told = call("train", "--data", folder, "--out", out, *SMALL)
    assert told.exit_code == 0, told.output
    # Without a terminal there is a line for each epoch instead of a bar.
    for epoch in (1, 2):
        assert f"epoch {epoch}/2: discriminator " in told.stderr
    assert f"Weights: {out}, samples: {out.with_suffix('.png')}" in told.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.png", "g.safetensors"]
    assert Generator.load(out).width == 4
    sheet = tmp_path / "again.png"
    assert call("sample", "--out", sheet, "--weights", out).exit_code == 0
    assert sheet.read_bytes() == out.with_suffix(".png").read_bytes()
    assert call("sample", "--out", sheet, "--weights", out, "--each", 3, "--seed", 1).exit_code == 0
    with Image.open(sheet) as image:
        assert image.size == (3 * 32, 10 * 32)


def test_resume_keeps_its_file_and_goes_on(folder: Path, tmp_path: Path) -> None:
    out, kept = tmp_path / "g.safetensors", tmp_path / "state"
    words = ("train", "--data", folder, "--out", out, *SMALL, "--resume", kept)
    assert "epoch 1/2" in call(*words).stderr
    more = call(*words, "--epochs", 3)
    assert "epoch 3/3" in more.stderr and "epoch 2/3" not in more.stderr
    kept.write_bytes(kept.read_bytes()[:-10])
    refused = call(*words)
    assert refused.exit_code == 2 and str(kept) in refused.stderr and refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--limit", "40001"), "--limit = 40001: expected an integer in [1, 40000]"),
        (("--dataset", "mnist"), "--dataset = 'mnist': expected one of"),
        (("--data", "absent"), "absent/train_lables.json: no such file"),
        (("--epochs", "0"), "--epochs = 0: expected an integer ≥ 1"),
        (("--minutes", "0"), "--minutes = 0.0: expected a number in (0, ∞)"),
        (("--out", "g.pt"), "--out = 'g.pt': expected a file name ending in .safetensors"),
        (("--device", "tpu"), "--device = 'tpu': expected cpu or cuda"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], told: str, folder: Path, tmp_path: Path) -> None:
    found = call("train", "--data", folder, "--out", tmp_path / "g.safetensors", *words)
    assert found.exit_code == 2
    assert found.stderr.startswith(f"refiner: {told}")
    assert found.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_samples_of_bad_weights_are_one_line(tmp_path: Path) -> None:
    found = call("sample", "--out", tmp_path / "a.png", "--weights", tmp_path / "absent")
    assert found.exit_code == 2 and "not a generator" in found.stderr
