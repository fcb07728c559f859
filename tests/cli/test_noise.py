"""`refiner noise`: statistics of one's own images, and the prediction of what is left of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from refiner import LeNet, Task
from refiner.cli import app
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.shaped_noise import NaturalNoise, predict_psnr


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["noise", *words])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled images in grey: the bundled statistics don't fit them."""
    path = tmp_path_factory.mktemp("noise") / "grey.npz"
    np.savez(path, images=load_sample().images.mean(1).numpy())
    return path


def test_fitted_statistics_shape_the_noise_of_a_refiner(images: Path, tmp_path: Path) -> None:
    file = tmp_path / "grey.safetensors"
    code, output = run("fit", "--data", str(images), "--out", str(file))
    assert code == 0 and output.startswith("Statistics of 200 images:")
    assert NaturalNoise.load(file).shape == (1, 32, 32)
    x, y = torch.rand(2, 1, 32, 32), torch.tensor([0, 1])
    task = Task(LeNet(input_shape=(1, 32, 32)), example=x)
    assert make_defense(f"refiner:statistics={file}").protect(task, x, y).samples == 2


def test_the_prediction_is_printed_beside_blind_guesses() -> None:
    code, output = run("predict", "--strength", "2")
    prediction = predict_psnr(load_sample().images, strength=2)
    assert code == 0
    assert f"{prediction.wiener_psnr:.1f} dB best linear estimate" in output
    assert f"{prediction.own_colour_psnr:.1f} dB blind guess: their own mean colour" in output
    assert f"{prediction.visible:.1%} visible in the best linear estimate" in output
    assert "warning" not in output


def test_too_weak_noise_is_warned_about() -> None:
    code, output = run("predict", "--strength", "0.5")
    assert code == 0 and "warning: noise of strength 0.5 leaves" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "--strength", "-1"), "strength"),
        (("predict", "--statistics", "nowhere"), "noise statistics"),
        (("fit", "--data", "nowhere", "--out", "x"), "no such file or folder"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str) -> None:
    code, output = run(*words)
    assert code == 2 and message in output and output.startswith("refiner: ")


def test_statistics_of_other_channels_name_the_command_that_fits_them(images: Path) -> None:
    code, output = run("predict", "--data", str(images))
    assert code == 2 and "refiner noise fit" in output
