"""`refiner audit` with attacks that learn: their images, what can be denied, and one-line errors."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.test_command import call

from refiner.audit import AuditResult, Plan
from refiner.cli.audit_steps import predict_noise
from refiner.core import Task
from refiner.data import load_sample
from refiner.models import MLP


def test_analytic_reads_images_off_an_mlp(tmp_path: Path) -> None:
    words = ("--model", "mlp", "--attack", "analytic", "--defense", "none", "--victims", "3")
    call(*words, out=tmp_path)
    result = AuditResult.load(next(tmp_path.glob("*.json")))
    assert result.means["psnr"].value == 100
    np.testing.assert_array_equal(result.reconstruction, result.original)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--attack", "linear", "--deny", "public"),
            "linear needs public, which this threat model does not grant; drop --deny public if",
        ),
        (
            ("--attack", "linear", "--deny", "public", "--deny", "defense"),
            "linear needs defense and public, which this threat model does not grant; drop --deny defense "
            "--deny public if",
        ),
        (("--attack", "linear", "--deny", "publik"), "deny = 'publik': unknown; did you mean 'public'?"),
        (("--deny", "labels", "--grant", "labels"), "--deny = 'labels': is granted as well"),
        (("--attack", "linear", "--public-images", "0"), "--public-images = 0: expected an integer ≥ 1"),
        (
            ("--attack", "linear", "--public-images", "99"),
            "--public-images = 99: expected at least 100 public images besides the victims, which linear",
        ),
        (
            ("--attack", "linear", "--public-images", "150", "--batch", "16"),
            "--public-images = 150: expected at least 160 public images besides the victims, which",
        ),
        (("--attack", "linear:passes=0"), "passes = 0: expected an integer ≥ 1"),
        (("--attack", "analytic"), "model = 'body.0': expected a fully connected first layer with a bias"),
        (
            ("--attack", "analytic", "--model", "mlp", "--batch", "2"),
            "--batch = 2: expected 1: of more",
        ),
        (("--attack", "linear", "--tune-attacker"), "tune = 'linear': it has no setting that can be tuned"),
    ],
)
def test_wrong_options_print_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    error = call("--defense", "none", "--victims", "2", *words, out=tmp_path, code=2).stderr
    assert error.startswith("refiner: ") and message in error
    assert error.count("\n") == 1


def test_your_own_images_are_learned_from(tmp_path: Path) -> None:
    """Victims are the first images of the file, and the attack learns from the last ones."""
    sample = load_sample()
    pixels = (sample.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    arrays = tmp_path / "a.npz"
    np.savez(arrays, images=pixels[:, :24:2, :24:2], y=sample.labels.numpy())
    words = ("--data", str(arrays), "--defense", "none", "--attack", "linear")
    both = ("--attack", "inverting", "--iterations", "1", "--public-images", "150")
    call(*words, *both, "--victims", "5", out=tmp_path / "out")
    results = {result.attack: result for result in map(AuditResult.load, (tmp_path / "out").glob("*.json"))}
    assert set(results) == {"linear", "inverting"}
    attacker = results["linear"].settings["attacker images"]
    assert isinstance(attacker, dict) and attacker["source"] == "150 images as given"
    # The number of iterations is for attacks that iterate, and only some attacks learn.
    assert results["inverting"].settings["attack"]["iterations"] == 1  # type: ignore[index]
    assert "attacker images" not in results["inverting"].settings
    error = call(*words, "--victims", "120", out=tmp_path / "few", code=2).stderr
    assert "public_images = 80: expected at least 100 public images" in error
    error = call(*words, "--victims", "200", out=tmp_path / "none", code=2).stderr
    assert "public images: none, linear learns from labelled images like the victims'" in error


@pytest.mark.parametrize(
    ("defense", "predicted"), [("refiner", True), ("refiner:start=centred", False), ("none", False)]
)
def test_what_the_noise_leaves_of_your_images_is_predicted(
    defense: str, predicted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = torch.Generator().manual_seed(0)
    # Grey stripes: smooth in one direction only, unlike photographs.
    stripes = torch.rand(260, 1, 12, 1, generator=draws).expand(-1, 3, -1, 12).contiguous()
    task = Task(MLP(input_shape=(3, 12, 12), hidden=4), example=stripes[:1])

    def printed(others: int, quiet: bool = False) -> str:
        x, y, public = stripes[:2], torch.tensor([0, 1]), stripes[2 : 2 + others]
        plan = Plan.of(task, x, y, defense=defense, attack="analytic", public=public)
        predict_noise([plan, plan], quiet=quiet)
        return capsys.readouterr().err

    many, few = printed(258), printed(150)
    if not predicted:
        assert not many and not few
        return
    assert re.search(r"noise of refiner: .* a linear estimate reaches [\d.]+ dB and shows \d+% of them", many)
    assert many.count("warning: refiner: noise of strength 3 leaves") == 1
    assert printed(258, quiet=True) == many[many.index("refiner: warning") :] and not printed(150, quiet=True)
    assert few == "refiner: noise of refiner: 152 images are too few to predict what it hides\n"
