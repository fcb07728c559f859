"""`refiner audit --attack membership`: its options, output and report, on the bundled images."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner, Result

from refiner.cli import app
from refiner.data import load_sample
from refiner.inference import Alignment

QUICK = ("--victims", "8", "--batch", "2", "--public-images", "100", "-q")
NOISE = "dp-gaussian:magnitude=10,clip=none"


def audit(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["audit", *QUICK, *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def test_an_audit_of_membership(tmp_path: Path) -> None:
    words = ("--attack", "membership:method=alignment", "--defense", "none", "--defense", NOISE)
    record = json.loads(audit(*words, "--json", "--out", tmp_path).stdout)
    none, noise = record["membership"]["audits"]
    assert (none["defense"], none["attack"], none["level"]) == ("none", "alignment", "found")
    assert none["auc"]["low"] > 0.5 and none["same_labels"] and none["members"] == 16
    assert (noise["defense"], noise["level"]) == (NOISE, "not found")
    assert noise["undefended_auc"] == none["auc"]
    page = Path(record["report"]).read_text()
    assert "What uploads reveal of membership" in page and 'class="band"' in page
    saved = json.loads((tmp_path / "membership" / "results.json").read_text())
    assert saved == record["membership"]


@pytest.mark.processes
def test_an_interrupted_audit_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Alignment.run, []

    def interrupted(self: Alignment, *arguments: Any) -> Tensor:
        calls.append(1)
        # The first two are the undefended uploads and the blind baseline.
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(Alignment, "run", interrupted)
    words = ("--attack", "membership:method=alignment", "--defense", "gq", "--out", tmp_path)
    words += ("--victims", "2", "--public-images", "20")
    message = "stopped after 1 of 2 audits; run the same command to continue"
    assert message in audit(*words, code=130).stderr
    first = json.loads(audit(*words, "--json").stdout)["membership"]["audits"]
    assert len(calls) == 4
    assert json.loads(audit(*words, "--json").stdout)["membership"]["audits"] == first and len(calls) == 4


@pytest.mark.processes
def test_both_kinds_of_attacks_share_a_report(tmp_path: Path) -> None:
    words = ("--attack", "membership:method=alignment", "--attack", "linear", "--defense", "none")
    result = audit(*words, "--batch", "1", "--out", tmp_path)
    text = " ".join(result.stdout.split())
    assert "none against alignment: members found" in text and "linear" in text
    page = (tmp_path / "report.html").read_text()
    assert "How much of your data can be reconstructed" in page and "Who was a member" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--attack", "membership:method=lire"), "attack = 'lire': unknown"),
        (("--attack", "membership:images=0", "--rounds", "0"), "setting of likelihood = 'images': unknown"),
        (("--attack", "membership", "--rounds", "0"), "--rounds = 0: expected an integer in [1, 1000]"),
        (("--attack", "membership", "--iterations", "5"), "--iterations = 5: does not apply to a membership"),
        (("--attack", "linear", "--epochs", "2"), "--epochs = 2: applies to membership audits only"),
        (("--attack", "membership", "--deny", "public"), "likelihood needs public"),
        (("--attack", "membership", "--victims", "80"), "--victims = 80: expected at most "),
        (("--attack", "membership", "--defense", "refinr"), "did you mean 'refiner'"),
        (("--attack", "membership", "--public-images", "0"), "--public-images = 0: expected 1 or more"),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    error = audit("--out", tmp_path / "out", *words, code=2).stderr
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("ab", "expected more images than the 32 members and non-members: likelihood learns from others"),
        ("a", "expected images of two classes or more, by sub-folder or with labels in the file"),
    ],
)
def test_images_that_do_not_suffice_are_one_line(classes: str, message: str, tmp_path: Path) -> None:
    for number, image in enumerate(load_sample().images[:32]):
        file = tmp_path / "images" / classes[number % len(classes)] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.mul(255).byte().permute(1, 2, 0).numpy()).save(file)
    words = ("--data", tmp_path / "images", "--attack", "membership", "--out", tmp_path / "out")
    error = audit(*words, code=2).stderr
    assert message in error and len(error.splitlines()) == 1 and not (tmp_path / "out").exists()
