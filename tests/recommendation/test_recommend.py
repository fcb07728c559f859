"""Recommendations on real images: an MLP, of which every undefended upload shows its image."""

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
from refiner.core.gradients import flatten, flatten_parameters, gradients
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.federation.federated_settings import FederatedSettings
from refiner.recommendation import Recommendation, Rung, SearchPlan, Target
from refiner.recommendation.price import measure_price
from refiner.recommendation.run_recommendation import split_images
from refiner.recommendation.short_training import short_training
from refiner.shaped_noise import NaturalNoise

CANDIDATES = ("gq:bits=8", "dp-gaussian:magnitude=10,clip=none", "dp-gaussian:magnitude=100,clip=none")


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.Sigmoid(), nn.Linear(16, 10))


def plan(**changes: Any) -> SearchPlan:
    settings: dict[str, Any] = {
        "candidates": CANDIDATES,
        "attacks": ("analytic",),
        "rungs": (Rung(4, 1, 3), Rung(16, 1, 2)),
        "target": Target(),
        "batch": 16,
        "tuning_victims": 0,
        "training_rounds": 0,
        "lr": 0.1,
        "seed": 0,
        "budget": 60.0,
        "seconds": 1.0,
    }
    return SearchPlan(**(settings | changes))


def recommend(notes: list[str] | None = None, **changes: Any) -> Recommendation:
    data = refiner.load_sample()
    x, y = data.images[:64], data.labels[:64]
    task = Task(mlp(), example=x[:2])
    return refiner.recommend(task, x, y, plan=plan(**changes), note=([] if notes is None else notes).append)


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommend()


def test_the_cheapest_defence_that_meets_the_target_is_recommended(found: Recommendation) -> None:
    assert found.undefended.psnr.value > 60 and found.undefended.visible.value == 1
    # Without its noise the gradient shows the image; ten times as much noise costs ten times as much.
    assert found.chosen == CANDIDATES[1]
    assert f"Take {CANDIDATES[1]}: the strongest attack, analytic, reaches" in found.sentence
    by_name = {row.defense: row for row in found.rows}
    assert not by_name["gq:bits=8"].is_met and not by_name["gq:bits=8"].is_final
    weak, strong = (by_name[name].price.gradient_error for name in CANDIDATES[1:])
    assert strong == pytest.approx(10 * weak, rel=0.1)


def test_a_defence_that_searches_in_batches_is_recommended_with_their_audit(found: Recommendation) -> None:
    warning = " In batches of 16 it moves the noisy images towards the real gradient, which may reveal more"
    for defense, expected in (("refiner", True), ("refiner+gq", True), ("refiner:search=never", False)):
        chosen = replace(found, chosen=defense, rows=(replace(found.rows[0], defense=defense),))
        assert (warning in chosen.sentence) == expected
    assert warning not in found.sentence


TOO_FEW = "64 candidates it can't be distinguished from chance; it takes 200 images of the same kind."


def test_too_few_candidates_for_identification_are_stated(found: Recommendation) -> None:
    assert found.sentence.endswith(TOO_FEW)
    data = refiner.load_sample()
    enough = split_images(Task(mlp(), example=data.images[:2]), data.images, data.labels)
    assert enough.public is not None and len(enough.x) + len(enough.public) == 200


@pytest.mark.processes
def test_the_same_plan_gives_the_same_recommendation(found: Recommendation) -> None:
    again = recommend()
    assert again.chosen == found.chosen
    assert [row.evidence for row in again.rows] == [row.evidence for row in found.rows]


def test_the_recommended_lines_run(found: Recommendation) -> None:
    data = refiner.load_sample()
    model = mlp()
    names = {
        "model": model,
        "loss": nn.functional.cross_entropy,
        "x": data.images[:16],
        "y": data.labels[:16],
    }
    exec(found.code, names | {"refiner": refiner})
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_lines_with_a_secret_keep_it_in_a_file(
    found: Recommendation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = refiner.load_sample()
    names = {"model": mlp(), "loss": nn.functional.cross_entropy, "x": data.images[:4], "y": data.labels[:4]}
    exec(replace(found, chosen="refiner:search=never").code, names | {"refiner": refiner})
    assert len((tmp_path / "client.secret").read_bytes()) == 32


@pytest.mark.processes
def test_if_nothing_meets_the_target_it_says_so() -> None:
    found = recommend(candidates=("gq:bits=8", "pruning:rate=0.1"))
    assert found.chosen is None and found.code == ""
    assert found.sentence.startswith("No candidate meets the target (no attack better than a blind guess)")
    assert len(found.rows) == 2
    assert found.sentence.endswith(TOO_FEW)


@pytest.mark.processes
def test_candidates_left_behind_are_measured_before_giving_up() -> None:
    # On two clients both noises meet this target, and only the cheaper one reaches the last rung; on sixteen
    # clients neither does.
    notes: list[str] = []
    found = recommend(notes, rungs=(Rung(2, 1, 3), Rung(16, 1, 1)), target=Target(max_psnr=5.0))
    assert [row.defense for row in found.rows if row.is_final] == list(CANDIDATES[:0:-1])
    assert found.chosen is None
    assert f"no finalist meets the target; next: {CANDIDATES[2]}" in notes


def test_a_large_gradient_error_is_stated(found: Recommendation) -> None:
    row = next(row for row in found.rows if row.defense == found.chosen)
    assert row.price.gradient_error >= 0.7
    assert "Accuracy was not measured" in found.sentence
    assert "measure it with “recommend(…, training_rounds=500)”." in found.sentence
    command = replace(found, command="refiner recommend --data 'my photos' --train-rounds 500").sentence
    assert "measure it with “refiner recommend --data 'my photos' --train-rounds 500”." in command
    for price in (replace(row.price, gradient_error=0.69), replace(row.price, pmm=97.0)):
        better = replace(found, rows=(replace(row, price=price),))
        assert "Accuracy was not measured" not in better.sentence


def test_a_small_error_that_was_left_behind_comes_next_if_the_budget_allows(found: Recommendation) -> None:
    # On four clients 8 bits miss this target by less than the interval, and noise meets it.
    psnr = next(row for row in found.rows if row.defense == "gq:bits=8").evidence.psnr
    assert psnr.low is not None and psnr.low < psnr.value
    notes: list[str] = []
    target = Target(max_psnr=(psnr.low + psnr.value) / 2)
    rungs = (Rung(4, 1, 2), Rung(4, 1, 1))
    again = recommend(notes, candidates=CANDIDATES[:2], rungs=rungs, target=target, spare=0)
    problem = "no finalist meets the target with a small gradient error"
    assert f"{problem}, and the budget leaves no time for gq:bits=8" in notes
    assert again.chosen == CANDIDATES[1]


def test_a_model_on_which_no_attack_works_gets_no_recommendation() -> None:
    data = refiner.load_sample()
    task = Task(refiner.LeNet(), example=data.images[:2])
    weak = plan(attacks=("inverting:lr=1e-9",), rungs=(Rung(4, 1, 3),))
    found = refiner.recommend(task, data.images[:64], data.labels[:64], plan=weak)
    assert found.chosen is None and not found.rows
    assert "no attack works on this model without a defence" in found.sentence


def test_a_defence_that_does_not_apply_is_skipped_with_its_reason(tmp_path: Path) -> None:
    grey = tmp_path / "grey.safetensors"
    NaturalNoise.fit(torch.rand(100, 1, 16, 16)).save(grey)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    data = refiner.load_sample()
    x = data.images[:, :, ::2, ::2].contiguous()
    names = (f"refiner:statistics={grey}", CANDIDATES[1])
    found = refiner.recommend(
        Task(model, example=x[:2]),
        x[:64],
        data.labels[:64],
        plan=plan(candidates=names, rungs=(Rung(4, 1, 2),)),
    )
    assert list(found.skipped) == [names[0]] and "statistics = 'of 1 channels'" in found.skipped[names[0]]


@pytest.mark.processes
def test_a_short_training_measures_accuracy_and_the_trained_model() -> None:
    found = recommend(training_rounds=5, candidates=(CANDIDATES[1],), rungs=(Rung(4, 1, 1),))
    (row,) = found.rows
    assert row.price.pmm is not None and row.price.pmm >= 0
    assert row.trained is not None and row.trained != row.evidence


def test_only_the_same_training_is_continued(tmp_path: Path) -> None:
    data = refiner.load_sample()
    x, y = data.images[:64], data.labels[:64]
    settings = FederatedSettings(3, clients=1, batch=8, lr=0.5)
    results = []
    for scale in (1.0, 0.0, 1.0):
        model = mlp()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        task = Task(model, example=x[:2])
        _, trained = short_training(task, (x, y), settings, refiner.NoDefense(), tmp_path)
        results.append(flatten_parameters(trained, trained.parameters()))
    assert torch.equal(results[0], results[2]) and not torch.equal(results[0], results[1])
    assert len(list(tmp_path.iterdir())) == 2


def test_the_price_is_the_error_of_the_upload() -> None:
    data = refiner.load_sample()
    task = Task(mlp(), example=data.images[:2])
    x, y = data.images[None, :32], data.labels[None, :32]
    price = measure_price(task, make_defense("pruning:rate=0.9"), x, y, seed=0)
    real = flatten(gradients(task, x, y))
    upload = flatten(make_defense("pruning:rate=0.9").protect(task, x, y, seed=0).tensors)
    assert price.gradient_error == pytest.approx(float((upload - real).norm() / real.norm()))
    assert measure_price(task, make_defense("none"), x, y, seed=0).gradient_error == 0


def test_too_few_images_are_one_line() -> None:
    data = refiner.load_sample()
    task = Task(mlp(), example=data.images[:2])
    with pytest.raises(DataError, match="expected at least 8 images"):
        refiner.recommend(task, data.images[:7], data.labels[:7])


@pytest.mark.processes
def test_the_command_prints_writes_and_continues(tmp_path: Path) -> None:
    model = tmp_path / "own.py"
    model.write_text(
        "import torch\n"
        "def net(classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, classes))\n"
    )
    saved = plan(candidates=CANDIDATES[1:], rungs=(Rung(4, 1, 2), Rung(8, 1, 1))).save(tmp_path / "plan.json")
    out = tmp_path / "out"
    command = ["recommend", "--model", f"{model}:net", "--out", str(out), "--plan", str(saved), "--json"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    record = json.loads(first.stdout)
    assert record["chosen"] == CANDIDATES[1] and "make_defense(" in record["code"]
    page = (out / "report.html").read_text()
    assert "Which defence to take" in page and record["sentence"][:40] in page
    results = {path: path.stat().st_mtime_ns for path in out.glob("*-analytic-*.json")}
    assert results
    line = f"refiner recommend --out {out} --model {model}:net --train-rounds 500”"
    assert line in record["sentence"]
    again = CliRunner().invoke(app, [*command[:-1], "-q"])
    assert again.exit_code == 0 and "Take dp-gaussian" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in results} == results  # nothing was run again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "10"], "--budget = '10': expected a time such as 90s, 10min or 2h"),
        (["--max-exposed", "500%"], "expected a share such as 5% or 0.05"),
        (["--target", "nothing"], "expected"),
        (["--plan", "absent.json"], "absent.json: not a search plan (No such file or directory)"),
        (["--defense", "prunning"], "did you mean 'pruning'"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["recommend", "--out", str(tmp_path / "out"), *options])
    assert result.exit_code == 2
    assert message in result.output and len(result.stderr.strip().splitlines()) == 1
