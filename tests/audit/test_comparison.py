"""Tests of `refiner compare`: old and new audits side by side."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refiner.audit import AuditResult
from refiner.audit.comparison import compare_results, load_results
from refiner.audit.comparison_report import comparison_page, comparison_sentences
from refiner.cli import app
from refiner.errors import DataError
from refiner.report import render_page

Audited = Callable[[str], AuditResult]


def changed(result: AuditResult, section: str, psnr: float, **settings: object) -> AuditResult:
    """The same audit with other settings in one section, and another mean PSNR."""
    old = result.settings[section]
    assert isinstance(old, dict)
    means = {**result.means, "psnr": replace(result.means["psnr"], value=psnr)}
    verdict = replace(result.verdict, level="neither")
    merged = {**result.settings, section: {**old, **settings}}
    return replace(result, settings=merged, means=means, verdict=verdict)


def test_pairs_are_matched_by_settings_and_then_by_name(audited: Audited) -> None:
    none, refiner = audited("none"), audited("refiner")
    longer = changed(none, "attack", 40.0, iterations=99)
    extra = replace(refiner, attack="linear")
    comparison = compare_results([none, refiner], [longer, refiner, extra])
    assert [pair.name for pair in comparison.pairs] == [
        "none against inverting",
        "refiner against inverting (iterations = 24)",
    ]
    assert comparison.only_old == [] and [attack for _, attack in comparison.only_new] == ["linear"]
    (difference,) = comparison.differences
    assert (difference.name, difference.old, difference.new) == ("attack.iterations", "24", "99")
    assert difference.pairs == ("none against inverting",)
    first = comparison.pairs[0]
    assert first.psnr_change == 40.0 - none.means["psnr"].value
    answer, *others = comparison_sentences(comparison)
    assert answer == "1 of 2 pairs of defence and attack has another verdict."
    assert f"none against inverting: neither, was {none.verdict.level}." in others
    assert f"The largest change of PSNR is {first.psnr_change:+.1f} dB (none against inverting)." in others
    assert "Only in the new results: refiner against linear." in others


def test_equal_results_differ_in_nothing(audited: Audited) -> None:
    comparison = compare_results([audited("none")], [audited("none")])
    assert comparison.differences == []
    assert comparison_sentences(comparison) == [
        "None of 1 pair of defence and attack has another verdict.",
        "No PSNR has changed.",
    ]
    assert "None: the same settings and images." in render_page(comparison_page(comparison, "a", "b"))


def test_other_images_are_pointed_out(audited: Audited) -> None:
    other = changed(audited("none"), "data", 20.0, sha256="0" * 64)
    comparison = compare_results([audited("none")], [other])
    assert comparison.differences[0].pairs == () and len(comparison.differences[0].new) == 48
    assert comparison_sentences(comparison)[-1].startswith("The images differ")


def test_results_without_a_common_pair_are_rejected(audited: Audited) -> None:
    with pytest.raises(DataError, match="no pair of defence and attack is in both: none against"):
        compare_results([audited("none")], [audited("refiner")])
    # Two candidates of the same name are not guessed between.
    two = [changed(audited("none"), "attack", 20.0, iterations=n) for n in (98, 99)]
    with pytest.raises(DataError, match="no pair of defence and attack"):
        compare_results([audited("none")], two)


def test_command_prints_a_table_and_writes_a_page(audited: Audited, tmp_path: Path) -> None:
    old, new, page = tmp_path / "old", tmp_path / "new", tmp_path / "page.html"
    for folder, iterations in ((old, 24), (new, 99)):
        folder.mkdir()
        changed(audited("none"), "attack", iterations, iterations=iterations).save(folder / "none.json")
    run = CliRunner().invoke(app, ["compare", str(old), str(new), "--out", str(page)])
    assert run.exit_code == 0
    assert "24.0 → 99.0 (+75.0)" in run.stdout and "attack.iterations: 24 → 99" in run.stdout
    html = page.read_text(encoding="utf-8")
    assert "What changed between two audits" in html and "+75.0" in html and str(old) in html
    record = json.loads(CliRunner().invoke(app, ["compare", str(old), str(new), "--json"]).stdout)
    assert record["pairs"][0]["psnr_change"] == 75 and record["page"] is None
    assert record["differences"] == [{"name": "attack.iterations", "old": "24", "new": "99", "pairs": []}]


def test_unusable_folders_are_one_line(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)])
    assert run.exit_code == 2 and "no results of an audit" in run.output
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json: not an audit result"):
        load_results(tmp_path)
