"""Tests of the audit report: its sentences, tables and images."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from tests.audit.conftest import QUICK

from refiner.attacks import GGL, ThreatModel
from refiner.audit import AuditResult, Control, audit, report_page, write_report
from refiner.audit.control import conclude
from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.public_images import choose_public_images
from refiner.audit.ranking import COLUMNS as RANKING_COLUMNS
from refiner.audit.ranking import first_choice, rank_defenses, ranking_rows
from refiner.audit.report import page_verdict
from refiner.audit.report_table import (
    COLUMNS,
    OR_IDENTIFIABLE,
    blind_means,
    share_cell,
    table_note,
    table_rows,
)
from refiner.audit.result_records import UploadCost
from refiner.audit.summary import summary
from refiner.core import Task
from refiner.data import Sample
from refiner.defenses import Chain, NoDefense, Refiner
from refiner.generator import Generator
from refiner.metrics import (
    Share,
    Thresholds,
    Verdict,
    best_guesses,
    blind_guess,
    identify,
    judge,
    noise_ratio,
)
from refiner.report import Cell, Gallery, Grid, ReferenceLine, Scatter, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Audited = Callable[[str], AuditResult]


def test_page_summarises_the_audits(audited: Audited) -> None:
    undefended, defended = audited("none"), audited("refiner")
    page = report_page([undefended, defended], "somewhere <here>")
    assert page.summary.startswith("Without a defence") and "With refiner" in page.summary
    assert (
        f"A blind guess, made without any gradient, scores {undefended.means['blind_psnr'].value:.1f} dB."
        in page.summary
    )
    shown = render_page(page)
    # In the grid the original and two reconstructions of each image; in the gallery original and
    # reconstruction for each defence, and the robust data of Refiner.
    assert shown.count("data:image/png") == 3 * 3 + 3 * 2 + 3 * 3
    assert "somewhere &lt;here&gt;" in shown and "blind guess" in shown
    assert "visible from 15 dB" in shown and "visible from 0.5" in shown


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
    assert (
        "The ggl attack used the bundled generator, which was trained on CIFAR-10" in summary([result])
    ) is bundled


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
    assert isinstance(row["top-1"], Cell) and row["top-1"].text == "0 / 0 %"
    gallery = report_page([result]).folded[3]
    assert isinstance(gallery, Gallery)
    scores = gallery.groups[0].cards[0].scores
    first = result.findings[0]
    assert ("rank by LPIPS", f"{first.rank_lpips:g} of 200") in scores
    assert ("LPIPS", f"{first.lpips:.3f} (blind guess {first.blind_lpips:.3f})") in scores
    assert scores[1] == ("SSIM", f"{first.ssim:.2f} (blind guess {first.blind_ssim:.2f})")


def test_missing_blind_scores_are_dashes(audited: Audited) -> None:
    result, voting = audited("none"), ("blind_psnr", "blind_ssim")
    means = {n: mean for n, mean in result.means.items() if n in voting or not n.startswith("blind_")}
    fewer = replace(result, means=means)
    assert blind_means([fewer]) == {n.removeprefix("blind_"): means[n] for n in voting}
    row = dict(zip(COLUMNS, table_rows([fewer])[-1], strict=True))
    assert (row["LPIPS"], row["noise"], row["top-1"]) == ("–", "–", Cell("–"))
    render_page(report_page([fewer]))
    # Missing scores are taken from another result; audits of other victims share no blind guess.
    assert blind_means([fewer, audited("refiner")]) == blind_means([audited("refiner")])
    other = replace(result, means={**result.means, "blind_psnr": replace(means["psnr"], value=1.0)})
    assert blind_means([fewer, other]) is None and len(table_rows([fewer, other])) == 2


@pytest.mark.processes
def test_noise_ratio_is_left_out_for_shaped_noise(audited: Audited, task: Task, sample: Sample) -> None:
    """The evaluation network was trained on uniform noise; shaped noise looks clean to it."""
    shaped, white = Refiner(start="natural"), Refiner.paper()
    assert not shaped.noise_ratio_applies and white.noise_ratio_applies
    assert not Chain((shaped, NoDefense())).noise_ratio_applies and NoDefense().noise_ratio_applies
    attack = replace(QUICK, iterations=1)
    x, y = sample.images[:1], sample.labels[:1]
    results = [
        audit(task, x, y, defense=d, attack=attack, metrics=["noise"], control=False) for d in (shaped, white)
    ]
    assert "noise" not in results[0].means and results[0].findings[0].noise is None
    assert results[1].findings[0].noise is not None
    cells = [row[COLUMNS.index("noise")] for row in table_rows(results)]
    assert cells[0] == "–" and cells[1] != "–"
    assert "Noise of refiner: not valid for shaped noise" in table_note(results[:1])
    assert "not valid" not in table_note(results[1:])


def test_top1_shows_both_similarities(audited: Audited) -> None:
    result = audited("none")
    means = result.means
    means = {**means, "top1_pixels": replace(means["psnr"], value=0.21)}
    means = {**means, "top1_lpips": replace(means["psnr"], value=0.01)}
    place = COLUMNS.index("top-1")
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
    x, y = sample.images[:1], sample.labels[:1]
    result = audit(task, x, y, defense="none", attack=attack, metrics=[], thresholds=thresholds)
    page = html.unescape(render_page(report_page([result])))
    assert "visible by this audit's threshold from 20 dB." in page
    assert "threshold up to 0.1." in page and "the paper's threshold" not in page


NEITHER, IDENTIFIED, VISIBLE = (
    judge(psnr, 0.45, rank=rank, candidates=200) for psnr, rank in ((9.0, 100), (9.0, 1), (20.0, 100))
)
SHOWN = Control("visible", Share.of(20, 20), Share.of(20, 20), 38.5)


def judged(result: AuditResult, *verdicts: Verdict, control: Control | None = SHOWN) -> AuditResult:
    """The same audit with one finding per verdict."""
    findings = tuple(
        replace(result.findings[0], name=f"victim {i}", victim=i, verdict=v) for i, v in enumerate(verdicts)
    )
    count, pixels = len(findings), result.original[:1].repeat(len(findings), axis=0)
    changed = replace(
        result,
        victims=count,
        findings=findings,
        objective=(0.0,) * count,
        diverged=(False,) * count,
        original=pixels,
        reconstruction=pixels,
        robust=None,
        candidates=3000,
    )
    return conclude(changed, control, Thresholds())


def sentences(*results: AuditResult) -> str:
    """The summary without the scores in brackets."""
    return re.sub(r" \(mean PSNR [\d.]+ dB\)|, mean PSNR [\d.]+ dB(?=\))", "", summary(results))


def test_summary_needs_no_explanation(audited: Audited) -> None:
    none, refiner = audited("none"), audited("refiner")
    assert sentences(
        judged(none, *[VISIBLE] * 20), judged(refiner, *[IDENTIFIED] * 3, *[NEITHER] * 17)
    ).startswith(
        "Without a defence, the inverting attack recovers all 20 images visibly. With refiner, none of 20 "
        "images is visible; 3 of 20 can be picked out of 3,000 candidates. A blind guess"
    )
    mixed = judged(none, *[VISIBLE] * 5, *[IDENTIFIED] * 4, *[NEITHER] * 11)
    assert sentences(mixed).startswith(
        "Without a defence, the inverting attack recovers 5 of 20 images visibly, and 4 more can be picked "
        "out of 3,000 candidates. A blind guess"
    )
    for verdicts, sentence in (
        ([VISIBLE], "With refiner, the image is visible."),
        ([NEITHER], "With refiner, the image is not visible."),
        ([VISIBLE] * 2, "With refiner, both images are visible."),
        ([VISIBLE, NEITHER], "With refiner, 1 of 2 images is visible."),
        (
            [IDENTIFIED] * 20,
            "With refiner, none of 20 images is visible; 20 of 20 can be picked out of 3,000",
        ),
    ):
        assert sentence in sentences(judged(refiner, *verdicts))


def test_strongest_attack_of_each_defence_is_summarised(audited: Audited) -> None:
    weak = judged(audited("refiner"), *[NEITHER] * 20)
    strong = replace(judged(audited("refiner"), *[IDENTIFIED] * 9, *[NEITHER] * 11), attack="linear")
    failed = replace(
        judged(audited("refiner"), *[VISIBLE] * 20, control=replace(SHOWN, level="neither")), attack="idlg"
    )
    text = sentences(weak, failed, strong)
    assert (
        "With refiner, none of 20 images is visible to the strongest attack; 9 of 20 can be picked out of "
        "3,000 candidates (linear)." in text
    )
    assert "The idlg attack fails even without a defence" in text
    assert page_verdict([weak, failed, strong]) == "identifiable"
    assert page_verdict([failed]) == "no verdict"


def test_badge_is_the_verdict_on_the_only_defence(audited: Audited) -> None:
    hidden, shown = judged(audited("refiner"), *[NEITHER] * 3), judged(audited("none"), *[VISIBLE] * 3)
    assert page_verdict([shown, hidden]) == "neither"
    assert page_verdict([shown]) == "visible"
    assert page_verdict([shown, hidden, replace(hidden, defense="other")]) is None
    page = render_page(report_page([hidden]))
    assert "neither visible nor identifiable</span>" in page
    untested = render_page(report_page([judged(audited("refiner"), *[replace(NEITHER, chance=None)] * 3)]))
    assert "not visible; identification not tested</span>" in untested
    unknown = judged(audited("refiner"), *[NEITHER] * 3, control=None)
    assert page_verdict([unknown]) == "no verdict"
    assert "audit the defence `none` as well" in summary([unknown])
    assert "No verdict on refiner by inverting: no control was run." in table_note([unknown])


def test_shares_have_intervals(audited: Audited) -> None:
    result = judged(audited("refiner"), *[VISIBLE] * 2, *[IDENTIFIED] * 3, *[NEITHER] * 15)
    row = dict(zip(COLUMNS, table_rows([result])[0], strict=True))
    assert row["visible"] == share_cell(Share.of(2, 20)) == Cell("10 % [3, 30]", value=0.1)
    assert row[OR_IDENTIFIABLE] == Cell("25 % [11, 47]", value=0.25)
    assert row["verdict"] == Cell(verdict="visible")
    untested = judged(audited("refiner"), *[replace(NEITHER, chance=None)] * 3)
    row = dict(zip(COLUMNS, table_rows([untested])[0], strict=True))
    assert row["visible"] == share_cell(Share.of(0, 3)) and row[OR_IDENTIFIABLE] == Cell("not tested")


def test_chance_identification_is_not_reported_as_exposure(audited: Audited) -> None:
    """Chance alone identifies one of ninety images; summary and verdict agree."""
    by_chance = judged(audited("refiner"), IDENTIFIED, *[NEITHER] * 89)
    assert by_chance.verdict.level == "neither" and by_chance.verdict.by_chance == 1
    chance = "no more than chance may give."
    assert f"With refiner, none of 90 images is visible; 1 identified, {chance}" in sentences(by_chance)
    assert f"1 identifiable (1.11 %), {chance}</p>" in render_page(report_page([by_chance]))
    mixed = judged(audited("refiner"), IDENTIFIED, VISIBLE, VISIBLE, *[NEITHER] * 87)
    assert mixed.verdict.by_chance == 1 and mixed.verdict.level == "identifiable"
    assert f"2 of 90 images are visible; 1 identified, {chance}" in sentences(mixed)


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
    defenses = (*texts, Chain((Refiner(iterations=3), NoDefense())))
    results = [audit(task, x, y, defense=d, attack=attack, metrics=(), control=False) for d in defenses]
    assert [result.defense for result in results] == ["refiner+none", "refiner-paper+none", "refiner+none"]
    assert [defense for defense, _ in pair_names(results)] == [
        "refiner+none (refiner.iterations = 1)",
        "refiner-paper+none (refiner.iterations = 2)",
        "refiner+none (refiner.iterations = 3)",
    ]
    assert "refiner-paper+none (refiner.iterations = 2)" in render_page(report_page(results))
    unregistered = replace(results[0], defense="my defence")
    assert pair_names([unregistered])[0][0] == "my defence"


def priced(result: AuditResult, defense: str, error: float | None, **changes: Any) -> AuditResult:
    """The same audit under another defence whose uploads have that gradient error."""
    cost = None if error is None else UploadCost(error, 0.03, 0.01)
    return replace(result, defense=defense, cost=cost, **changes)


def test_defences_are_ranked_by_verdict_and_then_by_price(audited: Audited) -> None:
    hidden = judged(audited("refiner"), *[NEITHER] * 20)
    identified = judged(audited("refiner"), *[IDENTIFIED] * 9, *[NEITHER] * 11)
    shown = judged(audited("refiner"), *[VISIBLE] * 20)
    unknown = judged(audited("refiner"), *[NEITHER] * 20, control=None)
    results = [
        priced(unknown, "unknown", 0.0),
        priced(shown, "none", 0.0),
        priced(identified, "half", 0.1),
        priced(hidden, "unmeasured", None),
        priced(hidden, "dear", 0.9),
        priced(hidden, "cheap", 0.5),
        # The strongest attack counts, and the cost is that of any audit of the defence.
        priced(identified, "dear", None, attack="linear"),
    ]
    ranked = rank_defenses(results, {"cheap": 98.2})
    assert [each.name for each in ranked] == ["cheap", "unmeasured", "half", "dear", "none", "unknown"]
    assert (ranked[3].attack, ranked[3].verdict) == ("linear", "identifiable")
    assert ranked[3].cost == UploadCost(0.9, 0.03, 0.01)
    row = dict(zip(RANKING_COLUMNS, ranking_rows(ranked)[0], strict=True))
    assert row["defence"] == "cheap" and row["verdict"] == Cell(verdict="neither")
    assert row["gradient error"] == Cell("0.5", value=0.5) and row["PMM"] == Cell("98.2 %", value=98.2)
    assert row["time per upload"] == Cell("3.0× (30 ms)", value=3.0)
    assert ranked[4].cost == UploadCost(0.0, 0.01, 0.01)  # the time without a defence, by definition
    last = dict(zip(RANKING_COLUMNS, ranking_rows(ranked)[1], strict=True))
    assert last["gradient error"] == last["PMM"] == last["time per upload"] == Cell("–")


def test_first_choice_answers_which_defence_to_take(audited: Audited) -> None:
    hidden = judged(audited("refiner"), *[NEITHER] * 20)
    shown = judged(audited("refiner"), *[VISIBLE] * 20)
    none, cheap = priced(shown, "none", 0.0), priced(hidden, "cheap", 0.1)
    dear, weak = priced(hidden, "dear", 0.2), priced(shown, "weak", 0.0)
    unknown = [priced(judged(shown, *[NEITHER] * 3, control=None), name, 0.1) for name in ("first", "second")]
    few = judged(audited("refiner"), *[NEITHER] * 3)
    unseen = judged(shown, *[NEITHER] * 20, control=replace(SHOWN, level="identifiable"))
    for results, answer in (
        ([none, cheap], ""),
        (
            [none, weak, cheap],
            "First choice: cheap, the only one of 2 defences that hides the images from every attack tried.",
        ),
        (
            [dear, cheap, weak],
            "First choice: cheap, one of 2 defences that hide the images from every attack tried, with the "
            "smallest gradient error.",
        ),
        (
            [none, weak, priced(shown, "b", 1)],
            "None of the 2 defences hides the images from every attack tried.",
        ),
        (unknown, "There is no verdict on any of the 2 defences."),
        (
            [weak, priced(few, "few", 0.1)],
            "First choice: few, the only one of 2 defences that hides the images from every attack tried. "
            "Audit more images: of so few, up to 56 % might still be visible.",
        ),
        (
            [weak, priced(unseen, "unseen", 0.1)],
            "There is no first choice: no attack tried shows images even without a defence.",
        ),
        # One attack that shows them is enough, also if another one is the strongest on the defence.
        (
            [weak, priced(unseen, "cheap", 0.1), priced(hidden, "cheap", 0.1, attack="linear")],
            "First choice: cheap, the only one of 2 defences that hides the images from every attack tried.",
        ),
    ):
        page = report_page(results)
        assert page.answer == answer == first_choice(rank_defenses(results))
        assert (f"<strong>{answer}</strong>" in render_page(page)) is bool(answer)


def test_summary_of_many_defences_is_short(audited: Audited) -> None:
    """The sentences that the summary leaves out are in the note."""
    shown = judged(audited("refiner"), *[VISIBLE] * 2)
    results = [priced(shown, name, 0.1) for name in ("none", "a", "b", "c")]
    page = report_page(results)
    assert "With a" not in page.summary and "With a, both images are visible" in " ".join(page.note)
    assert "With b" in report_page(results[:3]).summary


def test_grid_shows_the_strongest_attack_on_every_defence(audited: Audited) -> None:
    weak, count = judged(audited("refiner"), *[NEITHER] * 20), 20
    strong = replace(
        judged(audited("refiner"), *[IDENTIFIED] * count),
        attack="linear",
        reconstruction=np.full_like(weak.reconstruction, 7),
    )
    none = judged(audited("none"), *[VISIBLE] * count)
    other = replace(weak, defense="other images", original=255 - weak.original)
    page = report_page([weak, strong, none, other])
    grid = page.sections[0]
    assert isinstance(grid, Grid)
    assert [column.name for column in grid.columns] == ["none", "refiner"]  # none first, then by rank
    defended = grid.columns[1]
    assert (defended.detail, defended.verdict) == ("by linear", "identifiable")
    assert all((image.pixels == 7).all() for image in defended.images)
    assert defended.images[0].score == f"{strong.findings[0].psnr:.1f} dB"
    assert len(grid.names) == 12 and "8 images more are not shown." in render_page(page)
    assert "Audited on other images, and not shown: other images." in grid.note


def test_gallery_counts_all_images(audited: Audited) -> None:
    """Twelve cards are shown of twenty images; the counts are those of the table."""
    result = judged(audited("refiner"), *[NEITHER] * 12, *[VISIBLE] * 2, *[IDENTIFIED] * 6)
    shown = render_page(report_page([result]))
    assert shown.count('<article class="card') == 12
    assert "2 visible, 6 more identifiable, 12 neither</span></summary>" in shown
    assert "10 % [3, 30]" in shown and "40 % [22, 61]" in shown


def test_privacy_is_plotted_against_price(audited: Audited) -> None:
    hidden = judged(audited("refiner"), *[NEITHER] * 2)
    results = [priced(hidden, "a", 0.1), priced(hidden, "b", 0.4), priced(hidden, "c", None)]
    plots = [section for section in report_page(results).sections if isinstance(section, Scatter)]
    assert [[dot.name for dot in plot.dots] for plot in plots] == [["a", "b"]]
    psnr, blind = (hidden.means[name].value for name in ("psnr", "blind_psnr"))
    assert (plots[0].dots[1].x, plots[0].dots[1].y) == (0.4, psnr)
    assert plots[0].references == [ReferenceLine("blind guess", round(blind, 1))]
    for few in (results[:1], results[1:]):
        assert not any(isinstance(section, Scatter) for section in report_page(few).sections)


def test_audit_measures_the_cost_of_an_upload(audited: Audited) -> None:
    none, refiner = audited("none").cost, audited("refiner").cost
    assert none is not None and refiner is not None
    assert none.gradient_error == 0 and none.relative_time == 1
    assert 0 < refiner.gradient_error < 100 and refiner.seconds > 0


@pytest.mark.processes
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_in_a_browser(
    audited: Audited, browser: "Browser", tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    results = [audited("none"), audited("refiner"), priced(audited("refiner"), "x" * 40, 0.1)]
    address = write_report(tmp_path / "report.html", results).as_uri()
    tab = browser.new_page(color_scheme=scheme)
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    ends = "badges => badges.map(badge => badge.getBoundingClientRect().right)"
    for width in (390, 1280, 1920):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(address)
        # On the first screen: the answer, and the first row of images with the verdict on every defence.
        assert tab.get_by_text("hides the images").or_(tab.get_by_text("First choice")).first.is_visible()
        heads = tab.locator("table.images thead .badge")
        assert heads.count() == 3
        box = tab.locator("table.images tbody tr").first.bounding_box()
        # Fonts differ between machines: at least half of the row is on the first screen.
        assert box is not None and box["y"] + box["height"] / 2 < 900
        for badges in (heads, tab.locator("section:nth-of-type(2) td .badge")):
            assert max(badges.evaluate_all(ends)) <= width
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert max(tab.locator("section:has(> .folded) td .badge").evaluate_all(ends)) <= width
        # No tick and no name of an axis is cut off.
        cut = """() => [...document.querySelectorAll("svg text")].filter((text) => {
          const box = text.getBoundingClientRect();
          return box.width && (box.left < 0 || box.right > innerWidth);
        }).map((text) => text.textContent)"""
        assert tab.evaluate(cut) == []
    assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth === 32 && i.alt)")
    first = tab.locator("section:nth-of-type(2) tbody tr th").first
    name = first.inner_text()
    for _ in range(2):
        tab.locator("section:nth-of-type(2)").get_by_role("button", name="gradient error").click()
    assert first.inner_text() != name
    tab.close()
    assert problems == []
