"""`--json` prints JSON and nothing else on stdout, `--quiet` no progress; in a file progress is lines."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from refiner.attacks import ATTACKS
from refiner.cli import app, progress
from refiner.data import DATASETS, load_sample, write_image_grid
from refiner.defenses import DEFENSES
from refiner.inference import MEMBERSHIP
from refiner.shaped_noise import predict_psnr


def run_json(*words: object) -> Any:
    """What a command with `--json` prints, as Python's own types; NaN and ∞ are no JSON."""

    def reject(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=reject)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of a tiny audit: images of 12×12 pixels."""
    file = tmp_path_factory.mktemp("small") / "small.npz"
    pixels = torch.nn.functional.avg_pool2d(load_sample().images[:4, :, :24, :24], 2) * 255
    np.savez(file, images=pixels.byte().permute(0, 2, 3, 1).numpy(), y=np.array([3, 1, 2, 0]))
    options = ("--data", str(file), "--model", "mlp", "--victims", "2", "--attack", "inverting:iterations=2")
    return ("audit", *options, "--defense", "none", "--defense", "pruning:rate=0.5")


@pytest.mark.processes
def test_defences_and_attacks() -> None:
    listed = run_json("defenses")
    assert [row["name"] for row in listed] == list(DEFENSES)
    assert all(row["guarantee"] and row["cost"] for row in listed)
    attacks = run_json("attacks")
    assert [row["name"] for row in attacks] == [*ATTACKS, *MEMBERSHIP, "attribute"]
    assert {row["kind"] for row in attacks} == {"reconstruction", "membership", "attribute"}
    assert "membership:method=lira" in [row["option"] for row in attacks]
    assert [row["name"] for row in run_json("attacks", "membership")] == list(MEMBERSHIP)
    gq = run_json("defenses", "gq")
    assert gq == next(row for row in listed if row["name"] == "gq")
    (bits,) = [setting for setting in gq["settings"] if setting["name"] == "bits"]
    assert bits["default"] == str(DEFENSES["gq"]().settings()["bits"]) and "integer" in bits["expected"]


def test_datasets_and_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path))
    rows = run_json("data", "list")
    assert [row["name"] for row in rows] == ["sample", *DATASETS]
    assert rows[0]["images"] == {"train": 200} and rows[1]["in_cache"] == "no"
    split = run_json("data", "partition", "--clients", 3, "--plot", tmp_path / "a.svg")
    assert [row["client"] for row in split["clients"]] == [1, 2, 3]
    assert sum(row["samples"] for row in split["clients"]) == 200
    assert all(sum(row["labels"].values()) == row["samples"] for row in split["clients"])
    assert split["clients"][0]["labels"].keys() == set(load_sample().class_names)
    assert Path(split["plot"]).exists()


def test_every_command_has_the_option() -> None:
    def leaves(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
        for name, each in (inner or {}).items():
            yield from leaves((*words, name), each)

    found = dict(leaves((), typer.main.get_command(app)))
    assert ("data", "fetch") in found and len(found) > 12
    for words, command in found.items():
        assert any("--json" in option.opts for option in command.params), " ".join(words)


def test_fetched_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 28, 28, 3), np.uint8)
    labels = np.arange(9)[:, None]
    file = tmp_path / "part.npz"
    np.savez(file, train_images=pixels, train_labels=labels, test_images=pixels[:2], test_labels=labels[:2])
    fetched = run_json("data", "fetch", "pathmnist", "--from", file)
    assert fetched["name"] == "pathmnist" and fetched["images"] == {"train": 9, "test": 2}
    assert Path(fetched["folder"]).is_dir() and fetched["source"].startswith("own files")
    assert run_json("data", "path", "path") == run_json("data", "verify", "pathmnist") == fetched
    bundled = {"name": "sample", "folder": None, "images": {"train": 200}, "source": "bundled"}
    assert run_json("data", "fetch", "sample") == run_json("data", "verify", "sample") == bundled


@pytest.mark.processes
def test_written_files_and_keys(tmp_path: Path) -> None:
    out = tmp_path / "noise.safetensors"
    assert run_json("noise", "fit", "--data", "sample", "--out", out) == {
        "statistics": str(out),
        "images": 200,
    }
    samples = tmp_path / "samples.png"
    assert run_json("gan", "sample", "--each", 1, "--out", samples) == {"samples": str(samples)}
    assert out.exists() and samples.exists()
    pytest.importorskip("cryptography")
    pytest.importorskip("flwr")
    private = tmp_path / "client"
    private.mkdir(mode=0o700)
    created = run_json("identity", private)
    assert created == run_json("identity", private) and len(bytes.fromhex(created["public_key"])) >= 32


def test_noise_refine_and_evaluation_network(tmp_path: Path) -> None:
    prediction = predict_psnr(load_sample().images, strength=0.5)
    record = run_json("noise", "predict", "--strength", 0.5)
    assert record["wiener_psnr"] == pytest.approx(prediction.wiener_psnr)
    assert record["warning"] == prediction.warning
    refined = run_json("refine", "--limit", 2, "--iterations", 1, "--seed", 0, "--out", tmp_path)
    assert [row["name"] for row in refined["defenses"]] == ["none", "refiner (paper)", "refiner"]
    assert refined["images"] == 2 and refined["defenses"][2]["squared_error"] > 0
    assert Path(refined["page"]).exists()
    write_image_grid(tmp_path / "a.png", (load_sample().images[:1] * 255).byte(), columns=1)
    (score,) = run_json("evalnet", "score", tmp_path / "a.png")
    assert score["image"] == str(tmp_path / "a.png") and score["noise_ratio"] < 0.1


def test_audit(small: tuple[str, ...], tmp_path: Path) -> None:
    record = run_json(*small, "--out", tmp_path)
    assert [audit["defense"] for audit in record["audits"]] == ["none", "pruning"]
    for audit in record["audits"]:
        assert audit["attack"] == "inverting" and audit["settings"]["attack"]["iterations"] == 2
        assert audit["means"]["psnr"]["low"] <= audit["means"]["psnr"]["value"]
        assert audit["verdict"]["level"] in ("visible", "identifiable", "neither", "no verdict")
    assert record["blind_guess"]["psnr"]["value"] > 0 and Path(record["report"]).exists()
    assert any("blind guess" in note for note in record["notes"])


def test_training(tmp_path: Path) -> None:
    words = ("train", "--rounds", 2, "--clients", 2, "--batch", 4, "--evaluate-every", 1)
    plain = run_json(*words, "--out", tmp_path / "plain")
    assert [rounds for rounds, _ in plain["curve"]] == [1, 2] and plain["reference"] is None
    assert plain["rounds"] == 2 and plain["accuracy"] == plain["curve"][-1][1]
    again = run_json(*words, "--out", tmp_path / "again", "--reference", tmp_path / "plain")
    expected = 100.0 if plain["accuracy"] else None
    assert again["reference"]["pmm"] == expected and again["reference"]["rounds"] == 2


def test_errors_leave_stdout_empty() -> None:
    result = CliRunner().invoke(app, ["defenses", "refinr", "--json"])
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith("refiner: defense = 'refinr': unknown")


def test_progress_in_a_file_is_plain_lines_and_none_when_quiet(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    words = ["train", "--rounds", "2", "--clients", "2", "--batch", "4", "--evaluate-every", "1"]
    lines = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "a")]).stderr.splitlines()
    assert re.fullmatch(r"training: 1 of 2, \d+ s", lines[0])
    assert re.fullmatch(r"training: 2 of 2, accuracy \S+ %, \d+ s", lines[-1])
    audited = CliRunner().invoke(app, [*small, "--out", str(tmp_path / "b")]).stderr
    assert re.search(r"^none against inverting \(1 of 2\): 4 of 4, \d+ s$", audited, re.MULTILINE)
    for command in (
        [*words, "--quiet", "--out", str(tmp_path / "c")],
        [*small, "-q", "--out", str(tmp_path)],
    ):
        quiet = CliRunner().invoke(app, command)
        assert quiet.exit_code == 0 and quiet.stdout and not quiet.stderr
