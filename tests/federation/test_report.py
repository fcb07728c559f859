"""Tests of the report of a training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from refiner.cli import app
from refiner.federation import Experiment, FederatedSettings, Outcome
from refiner.federation.reference import Reference
from refiner.federation.report import training_page, write_training_report
from refiner.report import Curves, Table, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXPERIMENT = Experiment(
    data="sample", defense="pruning:rate=0.8", training=FederatedSettings(rounds=4, clients=10, sampled=5)
)
OUTCOME = Outcome(0.4, [(2, 0.3), (4, 0.4)], 2.0, rounds_run=4, upload_bytes=12345)
REFERENCE = Reference(Path("out/plain"), [(2, 0.3), (3, 0.4), (4, 0.5)], {"seed": 1})


def test_report_compares_with_the_reference_after_the_same_rounds() -> None:
    page = training_page(EXPERIMENT, OUTCOME, REFERENCE)
    assert page.title == "Federated training with pruning:rate=0.8"
    assert "Test accuracy after 4 rounds: 40.00 %. PMM 80.0 %" in page.summary
    assert "the reference has seed = 1" in page.summary
    accuracy, pmm = page.sections
    assert isinstance(accuracy, Curves) and isinstance(pmm, Curves)
    assert [series.name for series in accuracy.series] == ["pruning:rate=0.8", "reference"]
    assert [(at, round(value)) for at, value in pmm.series[0].points] == [(2, 100), (4, 80)]
    table = page.folded[0]
    assert isinstance(table, Table)
    assert table.rows == [["2", "30.00 %", "30.00 %", "100.0 %"], ["4", "40.00 %", "50.00 %", "80.0 %"]]
    facts = dict(page.facts)
    assert facts["clients in a round"] == "5 of 10" and facts["time per round"] == "500 ms"
    assert facts["bytes per upload"] == "12,345" and facts["defence"] == "pruning:rate=0.8"


def test_report_shows_the_loss_beside_the_accuracy() -> None:
    outcome = replace(OUTCOME, losses=[(4, 1.9)])  # resumed from a log that has none for the first rounds
    reference = replace(REFERENCE, losses=[(2, 2.2), (3, 2.0), (4, 1.75)])
    accuracy, loss, pmm = training_page(EXPERIMENT, outcome, reference).sections
    assert isinstance(accuracy, Curves) and isinstance(loss, Curves) and isinstance(pmm, Curves)
    assert (accuracy.title, loss.title, pmm.title) == ("Test accuracy", "Test loss", "PMM")
    assert [(each.name, list(each.points)) for each in loss.series] == [
        ("pruning:rate=0.8", [(4, 1.9)]),
        ("reference", reference.losses),
    ]
    page = training_page(EXPERIMENT, outcome)
    alone, table = page.sections[1], page.folded[0]
    assert isinstance(alone, Curves) and [each.name for each in alone.series] == ["pruning:rate=0.8"]
    assert isinstance(table, Table) and table.columns == ["rounds", "accuracy", "loss"]
    assert table.rows == [["2", "30.00 %", "–"], ["4", "40.00 %", "1.9"]]


def test_report_without_a_reference_or_a_common_round() -> None:
    page = training_page(replace(EXPERIMENT, defense="none"), replace(OUTCOME, rounds_run=0))
    assert "there is no PMM" in page.summary and len(page.sections) == 1
    assert page.title == "Federated training without a defence"
    assert dict(page.facts)["time per round"] == "–"
    never = Reference(Path("out/plain"), [(3, 0.4)])
    apart = training_page(EXPERIMENT, OUTCOME, never)
    assert "no PMM: out/plain was not evaluated" in apart.summary and len(apart.sections) == 1
    failed = training_page(EXPERIMENT, OUTCOME, Reference(Path("out/plain"), [(2, 0.0), (4, 0.0)]))
    assert len(failed.sections) == 1
    for each in (page, apart, failed):
        render_page(each)


def test_participation_is_read_from_the_rounds_on_flower(tmp_path: Path) -> None:
    rounds = [{"round": 1, "asked": 5, "used": 0}, {"round": 1, "asked": 5, "used": 4}]
    rounds += [{"round": 2, "asked": 5, "used": 5}]
    lines = [*map(json.dumps, rounds), "half a li"]
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines), encoding="utf-8")
    html = write_training_report(tmp_path, EXPERIMENT, OUTCOME).read_text(encoding="utf-8")
    assert "9 of 10 (90.0 %)" in html and "Clients whose updates were used" in html
    assert "clients used: 2 values, 4" in html


def test_command_writes_the_report(tmp_path: Path) -> None:
    options = ["--rounds", "2", "--clients", "2", "--batch", "4", "--evaluate-every", "1", "--json"]
    run = CliRunner().invoke(app, ["train", *options, "--out", str(tmp_path)])
    assert run.exit_code == 0
    record = json.loads(run.stdout)
    assert record["report"] == str(tmp_path / "report.html")
    assert record["rounds_run"] == 2 and record["upload_bytes"] == 4 * 15826
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Federated training without a defence" in html and "63,304" in html
    assert [rounds for rounds, _ in record["losses"]] == [1, 2] and "Test loss" in html


@pytest.mark.processes
@pytest.mark.browser
def test_report_in_a_browser(browser: "Browser", tmp_path: Path) -> None:
    outcome = replace(OUTCOME, losses=[(2, 2.2), (4, 1.9)])
    address = write_training_report(tmp_path, EXPERIMENT, outcome, REFERENCE).as_uri()
    tab = browser.new_page(color_scheme="dark")
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    for width in (390, 1280, 1920):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(address)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        inside = """() => [...document.querySelectorAll(".plot text, .plot circle")].every((each) => {
          const box = each.getBoundingClientRect();
          return box.left >= 0 && box.right <= innerWidth;
        })"""
        assert tab.evaluate(inside)
    for name in ("Test accuracy", "Test loss", "PMM"):
        assert tab.get_by_role("img", name=name).count() == 1
    tab.close()
    assert problems == []
