"""The audit of attribute inference: verdicts by interval, the control, and one-line errors."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

from refiner import DataError, Task
from refiner.attacks import ThreatModel
from refiner.audit import AttributeAudit, audit_attribute, write_attribute_report
from refiner.audit.attribute.report import attribute_sections
from refiner.audit.local_update import UPLOADS_REVISION
from refiner.defenses import DPGaussian
from refiner.errors import ThreatModelError
from refiner.inference import AttributeInference, Interval

ATTACK = AttributeInference(clients=120, epochs=3)
CLIENTS, BATCH = 40, 2
KEPT_SCORES = import_module("refiner.audit.kept_scores")
NAMED = {"attribute": "attribute"}


@pytest.fixture(scope="module")
def setting() -> dict[str, Any]:
    """Images that are brighter where the attribute is 1; the labels say nothing about it."""
    torch.manual_seed(0)
    value = torch.arange(400) % 2
    x = torch.rand(400, 12) / 2 + value[:, None] / 4
    y = torch.randint(0, 3, (400,))
    task = Task(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)), example=x)
    # Pairs of images with one value.
    rows = torch.arange(160).view(CLIENTS, 2, BATCH).transpose(1, 2).reshape(-1, BATCH)[:CLIENTS]
    return {
        "task": task,
        "x": x[rows],
        "y": y[rows],
        "attribute": value[rows][:, 0],
        "public": (x[200:], y[200:], value[200:]),
        "attack": ATTACK,
    }


@pytest.fixture(scope="module")
def undefended(setting: dict[str, Any]) -> AttributeAudit:
    return audit_attribute(**setting, defense="none", name="brightness")


def test_a_gradient_reveals_what_its_data_share(undefended: AttributeAudit) -> None:
    assert undefended.level == "found" and undefended.auc is not None and undefended.auc.value > 0.95
    assert undefended.undefended == undefended.auc
    assert undefended.sentence.startswith("none: brightness found in 40 uploads; AUC ")
    record = json.loads(json.dumps(undefended.record()))
    assert record["level"] == "found" and len(record["scores"]) == CLIENTS and record["r2"] is None


def test_noise_alone_reveals_nothing(setting: dict[str, Any], undefended: AttributeAudit) -> None:
    defended = audit_attribute(**setting, defense=DPGaussian(magnitude=1e4), control=undefended)
    assert defended.level == "not found" and defended.undefended == undefended.auc
    assert defended.score.low <= 0.5 <= defended.score.high
    failed = replace(defended, undefended=Interval(0.5, 0.4, 0.6))
    assert failed.level == "no verdict"
    misled = replace(defended, auc=Interval(0.1, 0.05, 0.2))
    assert misled.level == "reversed"


def test_a_control_of_another_audit_is_refused_before_the_attack(
    setting: dict[str, Any], undefended: AttributeAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control from elsewhere would turn "no verdict" into "not found"."""
    monkeypatch.setattr(AttributeInference, "infer", None)
    x, y, value = setting["public"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": setting["x"].roll(2, 0)}, "data, x"),
        ({"public": (x[1:], y[1:], value[1:])}, "data, public images"),
        ({"task": Task(nn.Linear(12, 3), example=x)}, "model, name"),
        ({"attack": AttributeInference(clients=100)}, "attack, clients"),
        ({"seed": 1}, "seed"),
    ]
    for changed, difference in cases:
        arguments = {**setting, "defense": "gq", "control": undefended, **changed}
        message = rf"control = .*: expected the same audit without a defence \(other: {difference}\)"
        with pytest.raises(DataError, match=message) as raised:
            audit_attribute(**arguments)
        assert "\n" not in str(raised.value) and raised.value.field == "control"


def test_shares_of_mixed_batches_are_predicted(setting: dict[str, Any]) -> None:
    x, y, value = (t.view(CLIENTS, BATCH, *t.shape[1:]) for t in _mixed_images())
    mixed = {**setting, "x": x, "y": y, "attribute": value}
    found = audit_attribute(**mixed, defense="none")
    assert found.level == "found" and found.auc is None and found.r2 is not None
    assert found.mae is not None and found.blind_mae is not None and found.mae < found.blind_mae
    assert found.chance == 0 and "R² of its share" in found.sentence


def _mixed_images() -> tuple[Tensor, Tensor, Tensor]:
    """Images in a random order, so that batches are mixed."""
    generator = torch.Generator().manual_seed(1)
    value = torch.randint(0, 2, (CLIENTS * BATCH,), generator=generator)
    x = torch.rand(CLIENTS * BATCH, 12, generator=generator) / 2 + value[:, None] / 4
    return x, torch.randint(0, 3, (CLIENTS * BATCH,), generator=generator), value


def test_finished_scores_are_read_and_not_computed_again(
    setting: dict[str, Any], undefended: AttributeAudit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []
    audit = partial(audit_attribute, **setting, defense="none", folder=tmp_path)
    first = audit(on_progress=lambda stage, done, total: stages.append(stage))
    assert set(stages) == {"clients", "models"} and first.record() == {**undefended.record(), **NAMED}
    (file,) = tmp_path.iterdir()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(AttributeInference, "infer", refuse)
    assert audit().record() == first.record()
    for changed in ({"seed": 1}, {"defense": "gq:bits=4"}, {"y": setting["y"].flip(0)}):
        with pytest.raises(KeyboardInterrupt):
            audit(**changed)
    # Uploads that were simulated otherwise, before a correction, have other scores.
    with monkeypatch.context() as changing, pytest.raises(KeyboardInterrupt):
        changing.setattr(KEPT_SCORES, "UPLOADS_REVISION", UPLOADS_REVISION - 1)
        audit()
    file.write_text(file.read_text().replace("0.", "1.", 1))
    with pytest.raises(DataError, match="remove it to run this audit again") as raised:
        audit()
    assert "\n" not in str(raised.value)


def test_the_report_has_the_curve_of_every_defence(undefended: AttributeAudit, tmp_path: Path) -> None:
    defended = replace(undefended, defense="gq", scores=-undefended.scores)
    page = write_attribute_report(tmp_path / "report.html", [undefended, defended]).read_text()
    assert page.count('class="band"') == 2 and "dashed: without a defence" in page
    mixed = replace(undefended, auc=None, r2=Interval(0.2, -0.1, 0.4), mae=0.1, blind_mae=0.2)
    assert mixed.curve is None and len(attribute_sections([mixed])) == 1


def test_wrong_data_are_one_line(setting: dict[str, Any], undefended: AttributeAudit) -> None:
    x, y, value = setting["public"]
    own = (torch.cat([x, setting["x"][0]]), torch.cat([y, y[:2]]), torch.cat([value, value[:2]]))
    numbers = torch.arange(CLIENTS * BATCH).view(CLIENTS, BATCH)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"public": None}, "public = None: expected a triple: images, their labels and their attribute"),
        ({"public": (x, y, value[:3])}, r"public = \[200, 200, 3\]: expected one label and one value"),
        ({"public": own}, "public = 2: so many images are the clients'; expected others"),
        ({"public": (x, y, 0 * value)}, "public attribute = 0: expected images with both values"),
        ({"public": (x, y, value * 0.75)}, "public attribute = 0.75: expected 0 or 1, or another integer"),
        (
            {"groups": (None, None)},
            "groups = 'NoneType and NoneType': expected a pair of tensors of integers",
        ),
        ({"groups": numbers}, "groups = 'Tensor': expected a pair of tensors"),
        ({"groups": (numbers + 0.5, torch.arange(200))}, "groups = .*: expected a pair of tensors of integ"),
        ({"groups": (numbers, torch.arange(200))}, "groups = 80: so many public images are of the clients'"),
        ({"groups": (numbers, numbers)}, "groups = .*: expected "),
        ({"attribute": 0 * setting["attribute"]}, "attribute = 0: expected both values, 0 and 1"),
        ({"attribute": 2 * setting["attribute"]}, "attribute = 2: expected 0 or 1"),
        ({"attribute": value}, r"attribute = .* for every client, \[40\], or for every image, \[40, 2\]"),
        ({"x": setting["x"][0]}, r"x = .*: expected images \[V, B, 12\]"),
        (
            {"x": setting["x"][:6], "y": setting["y"][:6], "attribute": torch.arange(12).view(6, 2) % 2},
            "clients = 6: expected 10 or more: with fewer the interval of R² says nothing",
        ),
        ({"y": y}, "y = .*: expected torch.int64 labels"),
        ({"task": None}, "task = None: expected a Task"),
        (
            {"control": replace(undefended, defense="gq")},
            r"control = .*: expected the same audit without a defence \(other: defense\)",
        ),
    ]
    for changed, message in cases:
        with pytest.raises(DataError, match=message) as raised:
            audit_attribute(**{**setting, "defense": "gq", **changed})
        assert "\n" not in str(raised.value)
    with pytest.raises(ThreatModelError, match="attribute needs public"):
        audit_attribute(**setting, threat=ThreatModel(public=False))
