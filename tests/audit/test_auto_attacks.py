"""The attacks of an audit that names none: what applies depends on the model and on the batch."""

import pytest
import torch
from torch import nn

from refiner.attacks import ATTACKS, Attack, make_attack
from refiner.audit import Plan, Protocol, undefended_plans
from refiner.audit.auto_attacks import attacks_to_try
from refiner.core import Task
from refiner.data import load_sample
from refiner.errors import RefinerError
from refiner.models import MLP, ViT

SAMPLE = load_sample()
MODELS = {"mlp": MLP(hidden=8), "vit": ViT(width=8, depth=1, heads=2)}


@pytest.mark.parametrize(
    ("model", "batch", "names"),
    [
        (MODELS["mlp"], 1, ["analytic", "idlg", "inverting"]),
        (MODELS["vit"], 1, ["april", "idlg", "inverting"]),
        # In a batch of two neither closed form holds: the audit goes on without it.
        (MODELS["mlp"], 2, ["idlg", "inverting"]),
        (MODELS["vit"], 2, ["idlg", "inverting"]),
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


def test_all_attacks_are_tried_where_that_is_asked_for() -> None:
    x, y = SAMPLE.images[:2, None], SAMPLE.labels[:2, None]
    task = Task(MODELS["mlp"], example=x[0])
    pool = (torch.rand(150, 3, 32, 32), torch.zeros(150, dtype=torch.long))

    def make_plan(attack: Attack) -> Plan:
        return Plan.of(task, x, y, defense="none", attack=attack, pool=pool, metrics=[])

    plans, skipped = undefended_plans(make_plan, on_gpu=False, every=True, iterations=7)
    tried = {plan.attack.name for plan in plans}
    known = (*ATTACKS, *attacks_to_try(on_gpu=True), "linear+denoiser")
    assert tried | set(skipped) == {make_attack(name).name for name in known}
    assert {"linear", "learned", "dlg", "idlg", "inverting+adaptive", "linear+denoiser"} <= tried
    # Servers that change the model are an attack of their own, which is granted and never chosen.
    assert {"imprint", "loki", "trap-weights", "folds"} <= set(skipped)
    assert {plan.attack.settings()["iterations"] for plan in plans if plan.attack.name == "dlg"} == {7}


def test_if_no_attack_applies_the_error_says_why() -> None:
    x, y = SAMPLE.images[:2, None], SAMPLE.labels[:2, None]
    task = Task(MODELS["mlp"], example=x[0])

    def make_plan(attack: Attack) -> Plan:
        return Plan.of(
            task, x, y, defense="none", attack=attack, protocol=Protocol(summed_clients=5), metrics=[]
        )

    with pytest.raises(RefinerError, match=r"^summed_clients = 5: expected"):
        undefended_plans(make_plan, on_gpu=False)
