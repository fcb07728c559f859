"""The attacks of an audit that names none: what applies depends on the model and on the batch."""

import pytest
import torch
from torch import nn

from refiner.attacks import Attack
from refiner.audit import Plan, undefended_plans
from refiner.core import Task
from refiner.data import load_sample
from refiner.models import MLP, ViT

SAMPLE = load_sample()
MODELS = {"mlp": MLP(hidden=8), "vit": ViT(width=8, depth=1, heads=2)}


@pytest.mark.parametrize(
    ("model", "batch", "names"),
    [
        (MODELS["mlp"], 1, ["analytic", "inverting"]),
        (MODELS["vit"], 1, ["april", "inverting"]),
        # In a batch of two neither closed form holds: the audit goes on without it.
        (MODELS["mlp"], 2, ["inverting"]),
        (MODELS["vit"], 2, ["inverting"]),
    ],
)
def test_closed_forms_are_run_where_they_hold(model: nn.Module, batch: int, names: list[str]) -> None:
    x, y = SAMPLE.images[:4].view(-1, batch, 3, 32, 32), SAMPLE.labels[:4].view(-1, batch)
    task = Task(model, example=x[0])
    few = (torch.rand(6, 3, 32, 32), torch.zeros(6, dtype=torch.long))  # too few for `linear`

    def make_plan(attack: Attack) -> Plan:
        return Plan.of(task, x, y, defense="none", attack=attack, pool=few, metrics=[])

    plans, skipped = undefended_plans(make_plan, on_gpu=False)
    assert [plan.attack.name for plan in plans] == names
    assert ("batch = 2: expected 1" in " ".join(skipped.values())) == (batch == 2)
