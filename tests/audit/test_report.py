"""Tests of the audit report: its sentences, tables and images."""

import html
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.audit.conftest import QUICK

from refiner.attacks import GGL, ThreatModel
from refiner.audit import AuditResult, audit, report_page, write_report
from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.public_images import choose_public_images
from refiner.audit.report import page_verdict
from refiner.audit.report_table import COLUMNS, blind_means, table_rows
from refiner.audit.summary import summary
from refiner.core import Task
from refiner.data import Sample
from refiner.defenses import Chain, NoDefense, Refiner
from refiner.generator import Generator
from refiner.metrics import (
    GroupVerdict,
    Thresholds,
    Verdict,
    best_guesses,
    blind_guess,
    identify,
    judge,
    judge_group,
    noise_ratio,
)
from refiner.report import Cell, Gallery, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Audited = Callable[[str], AuditResult]


def test_page_summarises_the_audits(audited: Audited) -> None:
    undefended, defended = audited("none"), audited("refiner")
    page = report_page([undefended, defended], "somewhere <here>")
    assert "Without a defence, the inverting attack exposes" in page.summary
    assert (
        f"With refiner, the inverting attack exposes {defended.verdict.exposed or 'none'}"
        in page.summary.replace("all ", "")
    )
    assert (
        f"A blind guess, made without any gradient, scores {undefended.means['blind_psnr'].value:.1f} dB."
        in page.summary
    )
    shown = render_page(page)
    # Original and reconstruction of each image, and the robust data of Refiner.
    assert shown.count("data:image/png") == 3 * 2 + 3 * 3
    assert "somewhere &lt;here&gt;" in shown and "blind guess" in shown
    assert "exposed from 15 dB" in shown and "exposed from 0.5" in shown


@pytest.mark.parametrize("bundled", [False, True])
def test_summary_mentions_the_bundled_generator(task: Task, sample: Sample, bundled: bool) -> None:
    attack = GGL(iterations=1, generator=None if bundled else Generator(latent=4, width=8))
    result = audit(
        task,
        sample.images[:1],
        sample.labels[:1],
        defense="none",
        attack=attack,
        threat=ThreatModel(generator=True),
        metrics=[],
    )
    assert ("ggl used the bundled generator, which was trained on CIFAR-10" in summary([result])) is bundled


def test_table_has_a_row_for_every_pair_and_the_blind_guess(audited: Audited) -> None:
    rows = table_rows([audited("none"), audited("refiner")])
    assert [row[0] for row in rows] == ["none", "refiner", "blind guess"]
    assert all(len(row) == len(COLUMNS) for row in rows)
    granted = replace(audited("none"), label_recovery=None)
    assert table_rows([granted])[0][COLUMNS.index("labels inferred")] == "granted"


def test_table_and_cards_show_the_blind_guess(audited: Audited, sample: Sample) -> None:
    result, original = audited("none"), sample.images[:3]
    public = choose_public_images(original)
    assert public.images is not None
    guess = best_guesses(original, public.images)
    expected = {
        "lpips": blind_guess(original, public.images, "lpips").best.mean(),
        "noise": noise_ratio(guess).mean(),
        "top1_pixels": identify(guess, original, others=public.candidates).top1,
        "top1_lpips": identify(guess, original, "lpips", others=public.candidates).top1,
    }
    blind = blind_means([result, audited("refiner")])
    assert blind is not None and set(blind) == {"psnr", "ssim", *expected}
    for name, value in expected.items():
        assert blind[name].value == pytest.approx(float(value), abs=1e-6), name
    row = dict(zip(COLUMNS, table_rows([result])[-1], strict=True))
    assert row["LPIPS"] == f"{blind['lpips'].value:.3f}" and row["noise"] == f"{blind['noise'].value:.2f}"
    assert isinstance(row["identified"], Cell) and row["identified"].text == "0 / 0 %"
    gallery = report_page([result]).sections[3]
    assert isinstance(gallery, Gallery)
    scores = gallery.groups[0].cards[0].scores
    first = result.findings[0]
    assert ("rank by LPIPS", f"{first.rank_lpips:g} of 200") in scores
    assert scores[1] == ("SSIM", f"{first.ssim:.2f} (blind guess {first.blind_ssim:.2f})")


def test_missing_blind_scores_of_older_results_are_dashes(audited: Audited) -> None:
    result, voting = audited("none"), ("blind_psnr", "blind_ssim")
    means = {n: mean for n, mean in result.means.items() if n in voting or not n.startswith("blind_")}
    old = AuditResult.from_json(replace(result, means=means).to_json())
    assert blind_means([old]) == {n.removeprefix("blind_"): means[n] for n in voting}
    row = dict(zip(COLUMNS, table_rows([old])[-1], strict=True))
    assert (row["LPIPS"], row["noise"], row["identified"]) == ("–", "–", Cell("–"))
    render_page(report_page([old]))
    # Missing scores are taken from a newer result; audits of other victims share no blind guess.
    assert blind_means([old, audited("refiner")]) == blind_means([audited("refiner")])
    other = replace(result, means={**result.means, "blind_psnr": replace(means["psnr"], value=1.0)})
    assert blind_means([old, other]) is None and len(table_rows([old, other])) == 2


def test_identified_shows_both_similarities(audited: Audited) -> None:
    result = audited("none")
    means = result.means
    means = {**means, "top1_pixels": replace(means["psnr"], value=0.21)}
    means = {**means, "top1_lpips": replace(means["psnr"], value=0.01)}
    place = COLUMNS.index("identified")
    assert table_rows([replace(result, means=means)])[0][place] == Cell("21 / 1 %", value=0.21)
    del means["top1_lpips"]
    assert table_rows([replace(result, means=means)])[0][place] == Cell("21 %", value=0.21)
    del means["top1_pixels"]
    assert table_rows([replace(result, means=means)])[0][place] == Cell("–")


def test_table_note_states_the_thresholds(audited: Audited, task: Task, sample: Sample) -> None:
    page = html.unescape(render_page(report_page([audited("none")])))
    for limit in ("from 15 dB", "from 0.5", "up to 0.05", "up to 0.4"):
        assert f"visible by the Refiner paper's threshold {limit}." in page
    thresholds = Thresholds(psnr=20, lpips=0.1)
    attack = replace(QUICK, iterations=1)
    result = audit(
        task, sample.images[:1], sample.labels[:1], attack=attack, metrics=[], thresholds=thresholds
    )
    page = html.unescape(render_page(report_page([result])))
    assert "visible by this audit's threshold from 20 dB." in page
    assert "threshold up to 0.1." in page and "the paper's threshold" not in page


def test_page_verdict_is_that_of_the_only_defence(audited: Audited) -> None:
    protected = replace(
        audited("refiner"), verdict=GroupVerdict("protected", 0, 0, 3, 0, "0 of 3 exposed (0 %)")
    )
    exposed = replace(audited("none"), verdict=GroupVerdict("exposed", 3, 0, 0, 0, "3 of 3 exposed (100 %)"))
    assert page_verdict([exposed, protected]) == "protected"
    assert page_verdict([exposed]) == "exposed"
    assert page_verdict([exposed, protected, replace(protected, defense="other")]) is None
    failed = replace(exposed, verdict=protected.verdict)
    assert page_verdict([failed, protected]) is None, "a failing attack is no merit of the defence"
    assert page_verdict([protected]) == "protected"
    assert "audit the defence `none` as well" in report_page([protected]).summary
    assert "is unknown" not in report_page([exposed, protected]).summary
    assert "exposes none of 3 images: mean PSNR" in report_page([protected]).summary


def judged(result: AuditResult, *verdicts: Verdict) -> AuditResult:
    """The same audit with one finding per verdict."""
    findings = tuple(
        replace(result.findings[0], name=f"victim {i}", verdict=v) for i, v in enumerate(verdicts)
    )
    count, pixels = len(findings), result.original[:1].repeat(len(findings), axis=0)
    return replace(
        result,
        victims=count,
        findings=findings,
        verdict=judge_group(verdicts),
        objective=(0.0,) * count,
        diverged=(False,) * count,
        original=pixels,
        reconstruction=pixels,
        robust=None,
    )


PROTECTED, IDENTIFIED, VISIBLE = (
    judge(psnr, 0.1, rank=rank, candidates=200) for psnr, rank in ((9.0, 100), (9.0, 1), (20.0, 100))
)


def test_chance_identification_is_not_reported_as_exposure(audited: Audited) -> None:
    """Chance alone identifies one of ninety images; summary and verdict agree."""
    by_chance = judged(audited("refiner"), IDENTIFIED, *[PROTECTED] * 89)
    assert by_chance.verdict.level == "protected" and by_chance.verdict.by_chance == 1
    page = report_page([by_chance])
    assert "With refiner, the inverting attack exposes none of 90 images beyond chance" in page.summary
    assert "identification alone identifies 1, which chance explains" in page.summary
    assert "by identification alone" not in page.summary
    assert "chance explains 1 of the exposed.</p>" in render_page(page)


def test_chance_identification_beside_visible_images(audited: Audited) -> None:
    mixed = judged(audited("refiner"), IDENTIFIED, VISIBLE, VISIBLE, *[PROTECTED] * 87)
    assert mixed.verdict.by_chance == 1
    text = report_page([mixed]).summary
    assert "exposes 2 of 90 images by PSNR alone (identification" in text
    assert "identification alone identifies 1 more, which chance explains" in text
    assert "chance explains 1 of the exposed; the others by PSNR alone.</p>" in render_page(
        report_page([mixed])
    )


def test_identification_beyond_chance_is_reported_as_exposure(audited: Audited) -> None:
    many = judged(audited("refiner"), *[IDENTIFIED] * 9, *[PROTECTED] * 81)
    assert many.verdict.by_chance == 0
    text = report_page([many]).summary
    assert "exposes 9 of 90 images by identification alone: mean" in text and "chance" not in text


def test_audits_with_equal_names_are_distinguished(audited: Audited) -> None:
    first = audited("refiner")
    attack = {**first.settings["attack"], "lr": 0.5}  # type: ignore[dict-item]
    other = replace(first, settings={**first.settings, "attack": attack})
    names = pair_names([first, other, other])
    assert names == [
        ("refiner", "inverting (iterations = 24)"),
        ("refiner", "inverting (iterations = 24, lr = 0.5)"),
        ("refiner, 2", "inverting (iterations = 24, lr = 0.5)"),
    ]
    sections = shared_settings(names, [first, other, other])
    assert sections["model"] == first.settings["model"]
    assert sections["attack: inverting (iterations = 24, lr = 0.5)"] == attack
    render_page(report_page([first, other, other]))


def test_chain_is_named_by_its_parts_and_changed_settings(task: Task, sample: Sample) -> None:
    attack = replace(QUICK, iterations=1)
    x, y = sample.images[:1], sample.labels[:1]
    texts = ("refiner:iterations=1+none", "refiner-paper:iterations=2+none")
    results = [audit(task, x, y, defense=text, attack=attack) for text in texts]
    results.append(audit(task, x, y, defense=Chain((Refiner(iterations=3), NoDefense())), attack=attack))
    assert [result.defense for result in results] == ["refiner+none", "refiner-paper+none", "refiner+none"]
    assert [defense for defense, _ in pair_names(results)] == [
        "refiner+none (refiner.iterations = 1)",
        "refiner-paper+none (refiner.iterations = 2)",
        "refiner+none (refiner.iterations = 3)",
    ]
    assert "refiner-paper+none (refiner.iterations = 2)" in render_page(report_page(results))
    unregistered = replace(results[0], defense="my defence")
    assert pair_names([unregistered])[0][0] == "my defence"


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_report_in_a_browser(audited: Audited, browser: "Browser", tmp_path: Path, width: int) -> None:
    address = write_report(tmp_path / "report.html", [audited("none"), audited("refiner")]).as_uri()
    tab = browser.new_page(viewport={"width": width, "height": 900})
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(address)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth === 32)")
    first = tab.locator("table.sortable tbody tr th").first
    assert first.inner_text() == "none"
    tab.get_by_role("button", name="PSNR").click()
    assert first.inner_text() != "none"
    tab.close()
    assert problems == []
