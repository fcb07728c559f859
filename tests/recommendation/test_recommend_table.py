"""Recommendations for tabular data: 569 patients with 30 measurements, in Python and on the command line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import refiner
from refiner.cli import app
from refiner.core import Task
from refiner.data import load_csv_table
from refiner.defenses import NoDefense, make_defense
from refiner.errors import DataError, RefinerError
from refiner.metrics import Share
from refiner.recommendation import TableEvidence, TableRecommendation, TableTarget, recommend_table
from refiner.recommendation.table_training import train_on_rows

FILE = Path(__file__).parents[2] / "examples" / "breast_cancer.csv"
TABLE = load_csv_table(FILE, "benign").shuffled(0)
WEAK, ENOUGH, STRONG = "gq:bits=8", *(f"dp-gaussian:magnitude={m},clip=none" for m in ("1", "10"))


def task() -> Task:
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2)), example=TABLE.x[:2])


def recommend(**changes: Any) -> TableRecommendation:
    settings: dict[str, Any] = {
        "features": TABLE.features,
        "defenses": (STRONG, WEAK, ENOUGH),
        "attacks": ("analytic",),
        "training_rounds": 0,
    }
    return recommend_table(task(), TABLE.x, TABLE.y, **(settings | changes))


@pytest.fixture(scope="module")
def found() -> TableRecommendation:
    return recommend()


def test_the_cheapest_that_meets_the_target_is_recommended(found: TableRecommendation) -> None:
    assert found.chosen == ENOUGH and found.clients == 64
    assert [row.defense for row in found.rows] == [ENOUGH, STRONG, WEAK]
    assert [row.is_met for row in found.rows] == [True, True, False]
    assert found.undefended.error < 0.01 and found.undefended.identified.value == 1
    weak, strong = (row.price.gradient_error for row in found.rows[:2])
    assert strong == pytest.approx(10 * weak, rel=0.1)
    assert f"Take {ENOUGH}: against the strongest attack, analytic, the error of a row is" in found.sentence
    assert "measured on these weights only" in found.sentence
    assert found.rows[2].evidence.feature in TABLE.features


def test_the_lines_run(found: TableRecommendation) -> None:
    model = task().model
    names = {"model": model, "loss": nn.functional.cross_entropy, "x": TABLE.x[:16], "y": TABLE.y[:16]}
    exec(found.code, names | {"refiner": refiner})
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.processes
def test_trainings_measure_what_a_defence_keeps() -> None:
    notes: list[str] = []
    found = recommend(training_rounds=60, defenses=(WEAK, ENOUGH), note=notes.append)
    assert found.accuracy is not None and found.accuracy > 0.7
    by_name = {row.defense: row for row in found.rows}
    # Only a defence that meets the target is trained.
    assert by_name[WEAK].price.pmm is None and by_name[ENOUGH].price.pmm is not None
    assert "60 rounds of training keep" in found.sentence
    assert any("of 2: " in note and "left" in note for note in notes)


def test_an_upload_that_teaches_nothing_is_not_the_first_choice() -> None:
    # Both meet the target. An upload with almost no gradient has an error of 1, that of noise is larger.
    empty, noise = "pruning:rate=0.999999", "dp-gaussian:magnitude=1,clip=1,per_sample=true"
    found = recommend(training_rounds=40, lr=0.5, defenses=(empty, noise), target=TableTarget(0.5))
    by_name = {row.defense: row for row in found.rows}
    assert by_name[empty].price.gradient_error < by_name[noise].price.gradient_error
    assert by_name[empty].is_met and found.chosen == noise


def test_if_nothing_meets_the_target_it_says_so() -> None:
    found = recommend(defenses=(WEAK, "pruning:rate=0.1"))
    assert found.chosen is None and found.code == "" and len(found.rows) == 2
    assert found.sentence.startswith("No candidate meets the target (no feature's error below 0.9")


def test_without_a_working_attack_there_is_no_recommendation() -> None:
    found = recommend(attacks=("inverting:iterations=1,lr=1e-9",))
    assert found.chosen is None and not found.rows
    assert "no attack works on this model without a defence" in found.sentence


def test_candidates_beyond_the_budget_and_of_images_are_skipped_with_their_reason() -> None:
    found = recommend(budget=1e-9, defenses=("refiner", WEAK, ENOUGH))
    assert [row.defense for row in found.rows] == [WEAK]  # the cheapest is measured in any case
    assert "expected images [C, H, W]" in found.skipped["refiner"]
    assert found.skipped[ENOUGH] == "the budget was spent on cheaper candidates"


def test_the_target() -> None:
    good = TableEvidence("linear", 1.0, "age", 0.95, Share.of(0, 20))
    assert TableTarget().is_met(good)
    for change in ({"error": 0.8}, {"feature_error": 0.8}, {"identified": Share.of(3, 20)}):
        worse = replace(good, **change)
        assert not TableTarget().is_met(worse) and not TableTarget().is_met(good.or_worse(worse))
    assert good.or_worse(None) == good


def test_a_short_training_changes_a_copy_only() -> None:
    own = task()
    before = [parameter.clone() for parameter in own.model.parameters()]
    rows, others = (TABLE.x[:300], TABLE.y[:300]), (TABLE.x[300:], TABLE.y[300:])
    settings: dict[str, Any] = {"rounds": 50, "batch": 32, "lr": 0.1, "seed": 0}
    accuracy, trained = train_on_rows(own, rows, others, NoDefense(), **settings)
    assert accuracy > 0.8
    assert all(torch.equal(*pair) for pair in zip(before, own.model.parameters(), strict=True))
    assert not any(torch.equal(*pair) for pair in zip(before, trained.model.parameters(), strict=True))
    again, _ = train_on_rows(own, rows, others, make_defense("none"), **settings)
    assert again == accuracy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"defenses": ("none",)}, "expected at least one defence"),
        ({"batch": 0}, "batch = 0: expected an integer in"),
        ({"batch": 10_000}, "batch = 10000: expected an integer in"),
        ({"budget": 0}, "budget = 0: expected a number"),
        ({"attacks": ("lineal",)}, "did you mean 'linear'"),
    ],
)
def test_wrong_arguments_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RefinerError, match=message):
        recommend(**change)


def test_too_few_rows() -> None:
    with pytest.raises(DataError, match="expected at least 40 rows"):
        recommend_table(task(), TABLE.x[:39], TABLE.y[:39])


@pytest.mark.processes
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def net(features, classes):\n"
        "    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))\n"
    )
    out = tmp_path / "out"
    words = ["recommend", "--data", f"csv:{FILE}", "--target", "benign", "--model", f"{tmp_path}/own.py:net"]
    words += ["--out", str(out), "--attack", "analytic", "--train-rounds", "5", "--budget", "60s"]
    words += ["--defense", WEAK, "--defense", ENOUGH]
    first = CliRunner().invoke(app, [*words, "--json"])
    assert first.exit_code == 0, first.output
    record = json.loads(first.stdout)
    assert record["chosen"] == ENOUGH and "make_defense(" in record["code"]
    assert json.loads((out / "recommendation.json").read_text())["sentence"] == record["sentence"]
    page = (out / "report.html").read_text()
    assert "Which defence to take" in page and "Lines for your training loop" in page
    assert "1 of 2: gq:bits=8: error 0.0" in first.stderr
    again = CliRunner().invoke(app, [*words, "-q"])
    assert again.exit_code == 0 and not again.stderr
    assert f"Take {ENOUGH}" in " ".join(again.stdout.split()) and "make_defense(" in again.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", f"csv:{FILE}"], "a table needs --target COLUMN"),
        (["--data", f"csv:{FILE}", "--target", "beningn"], "--target = 'beningn': unknown"),
        (
            ["--data", f"csv:{FILE}", "--target", "benign", "--max-psnr", "14"],
            "does not apply to tabular data",
        ),
        (["--data", f"csv:{FILE}", "--target", "benign", "--min-error", "2"], "--min-error = 2.0: expected"),
        (["--min-error", "0.5"], "--min-error = 0.5: only for a table: --data csv:FILE"),
    ],
)
def test_wrong_options_are_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["recommend", "--out", str(tmp_path / "out"), *words])
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
