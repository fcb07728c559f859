"""`refiner audit` on tabular data: 569 patients with 30 measurements, and a user's own model of rows."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from refiner.cli import app

FILE = Path(__file__).parents[2] / "examples" / "breast_cancer.csv"
NOISE = "dp-gaussian:magnitude=1,clip=none"
CODE = """
from torch import nn

def rows(features, classes):
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))

def images(classes, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(size**2, classes))
"""


def audit(*words: object, code: int = 0) -> Result:
    quick = ("--victims", "8", "--public-images", "200")
    result = CliRunner().invoke(app, ["audit", "--data", f"csv:{FILE}", *quick, *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def nets(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(CODE)
    return str(tmp_path / "nets.py")


def test_an_audit_of_rows(nets: str, tmp_path: Path) -> None:
    words = ("--target", "benign", "--model", f"{nets}:rows", "--defense", "none", "--defense", NOISE)
    result = audit(*words, "--out", tmp_path / "out", "--json")
    record = json.loads(result.stdout)
    by_pair = {(row["defense"], row["attack"]): row for row in record["audits"]}
    assert set(by_pair) == {(name, attack) for name in ("none", NOISE) for attack in ("analytic", "linear")}
    assert (
        by_pair["none", "linear"]["level"] == "revealed" and by_pair["none", "linear"]["error"]["value"] < 0.1
    )
    assert by_pair[NOISE, "linear"]["error"]["value"] > 0.8
    features = by_pair["none", "linear"]["features"]
    assert len(features) == 30 and features[0]["name"] == "mean radius"
    page = Path(record["report"]).read_text()
    assert "What uploads reveal of a table" in page and "worst fractal dimension" in page
    saved = json.loads((tmp_path / "out" / "table" / "results.json").read_text())
    assert saved["audits"] == record["audits"] and saved["target"] == "benign"
    # Progress says what is done, and can be turned off.
    assert f"{NOISE} against linear: " in result.stderr and " s\n" in result.stderr
    assert not audit(*words, "--out", tmp_path / "out", "--json", "--quiet").stderr


@pytest.mark.processes
def test_the_printed_table(tmp_path: Path) -> None:
    words = ("--target", "benign", "--attack", "linear", "--batch", "2", "-q", "--out", tmp_path)
    text = " ".join(audit(*words).stdout.split())
    assert "none against linear: " in text and "dp-gaussian against linear: " in text
    assert "16 rows are identified among 216" in text and "Report: " in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "a table needs --target COLUMN, the column with its class labels"),
        (("--target", "beningn"), "--target = 'beningn': unknown; did you mean 'benign'?"),
        (("--target", "mean radius"), "expected class labels"),
        (("--target", "benign", "--size", "32"), "--size = 32: does not apply to tabular data"),
        (("--target", "benign", "--from-robust"), "--from-robust = True: does not apply to tabular data"),
        (
            ("--target", "benign", "--victims", "300"),
            "--victims = 300: expected at most 284: half of 569 rows",
        ),
        (
            ("--target", "benign", "--model", "lenet"),
            "--model = 'lenet': expected mlp, or a factory of yours",
        ),
        (("--target", "benign", "--attack", "lineal"), "did you mean 'linear'"),
        (("--target", "benign", "--attack", "all"), "--attack = 'all': expected auto, or attacks by name"),
        (("--target", "benign", "--attack", "linear", "--deny", "public"), "drop --deny public"),
        (("--target", "benign", "--defense", "refiner"), "expected images [C, H, W], whose noise this is"),
        (("--target", "benign", "--classes", "1"), "1"),
    ],
)
def test_wrong_options_are_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    error = audit("--out", tmp_path / "out", "-q", *words, code=2).stderr
    assert message in error
    assert len(error.strip().splitlines()) == 1 or "Usage" in error
    assert not (tmp_path / "out").exists()


def test_a_model_of_images_is_refused(nets: str, tmp_path: Path) -> None:
    error = audit("--target", "benign", "--model", f"{nets}:images", "--out", tmp_path / "out", code=2).stderr
    assert "images fails" in error and error.count("\n") == 1


def test_images_have_no_target(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", "--target", "benign", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--target = 'benign': only a table has one: --data csv:FILE" in result.stderr
