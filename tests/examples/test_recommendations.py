"""Each example's model gets a recommendation, and importing an example starts nothing."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate
from typer.testing import CliRunner

from refiner.cli import app
from refiner.core import Task
from refiner.data import load_public_sample, load_sample
from refiner.models import build_model
from refiner.recommendation import Rung, SearchPlan, Target

EXAMPLES = Path(__file__).parents[2] / "examples"
WEAK, STRONG = "gq:bits=8", "dp-gaussian:magnitude=100,clip=none"


def recommend(model: str, *words: object) -> Any:
    command = ["recommend", "--model", f"{EXAMPLES / model}", "--json", "-q", *map(str, words)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def quick_plan(folder: Path, attack: str = "linear") -> Path:
    """Two defences, one attack, four clients."""
    plan = SearchPlan(
        candidates=(WEAK, STRONG),
        attacks=(attack,),
        rungs=(Rung(victims=4, iterations=1, candidates=2),),
        target=Target(max_psnr=16),
        batch=16,
        tuning_victims=0,
        training_rounds=0,
        lr=0.1,
        seed=0,
        budget=10.0,
        seconds=10.0,
    )
    return plan.save(folder / "quick.json")


def images(folder: Path, size: int) -> str:
    """Bundled images at another size; the attack learns from most of them."""
    parts = [load_sample(), load_public_sample()]
    x, y = (torch.cat([getattr(part, name)[:160] for part in parts]) for name in ("images", "labels"))
    pixels = (interpolate(x, size=size, mode="nearest") * 255).byte().permute(0, 2, 3, 1)
    np.savez(folder / "images.npz", images=pixels.numpy(), labels=y.numpy())
    return f"npz:{folder / 'images.npz'}"


def check_images(record: Any, attack: str = "linear") -> None:
    # Noise of 100 hides everything; whether 8 bits do depends on the model.
    rows = {row["defense"]: row for row in record["rows"]}
    assert rows[STRONG]["is_met"] and set(rows) == {WEAK, STRONG}
    assert record["attacks"] == [attack] and record["chosen"] in rows
    assert rows[WEAK]["price"]["gradient_error"] < rows[STRONG]["price"]["gradient_error"]


def test_the_model_of_the_plain_loop(tmp_path: Path) -> None:
    model = build_model(f"{EXAMPLES / 'plain_loop.py'}:make_model", 7, (3, 64, 64))
    assert Task(model, example=torch.rand(2, 3, 64, 64)).classes == 7
    assert not list(tmp_path.iterdir())


def test_the_table(tmp_path: Path) -> None:
    words = ("--data", f"csv:{EXAMPLES / 'breast_cancer.csv'}", "--target", "benign", "--out", tmp_path)
    quick = ("--attack", "analytic", "--train-rounds", "0", "--defense", WEAK, "--defense", STRONG)
    record = recommend("tabular_mlp.py:make_model", *words, *quick, "--batch", 50)
    assert record["chosen"] == STRONG and record["undefended"]["error"] < 0.01
    assert f'make_defense("{STRONG}")' in record["code"]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("model", "size", "module"),
    [
        ("plain_loop.py:make_model", 64, "torch"),
        ("lightning_module.py:make_model", 32, "lightning"),
    ],
)
def test_models_of_images(
    model: str, size: int, module: str, tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    if importlib.util.find_spec(module) is None:
        missing(module)
    words = ("--data", images(tmp_path, size), "--plan", quick_plan(tmp_path), "--out", tmp_path / "out")
    check_images(recommend(model, *words))


@pytest.mark.frameworks
def test_of_the_vit_of_hugging_face_april_is_the_attack_that_works(
    tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    if importlib.util.find_spec("transformers") is None:
        missing("transformers")
    words = ("--data", images(tmp_path, 32), "--out", tmp_path / "out", "--plan")
    record = recommend("hf_trainer.py:make_model", *words, quick_plan(tmp_path))
    assert record["chosen"] is None and record["failing"] == ["linear"]
    assert record["sentence"].startswith("No recommendation: no attack works on this model without a defence")
    check_images(recommend("hf_trainer.py:make_model", *words, quick_plan(tmp_path, "april")), "april")
