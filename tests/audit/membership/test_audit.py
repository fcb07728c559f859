"""Membership audits: a planted leak is found, a null upload gives 0.5, and wrong data are one line."""

import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inference.membership_scene import BATCH, make_scene

from refiner import Task
from refiner.attacks import ThreatModel
from refiner.audit import Protocol, Training, audit_membership, pair_by_label
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.local_update import UPLOADS_REVISION
from refiner.audit.membership.uploads import round_simulator, round_uploads
from refiner.audit.uploads import simulator
from refiner.core.flat_parameters import get_parameters
from refiner.defenses import NoDefense, make_defense
from refiner.errors import DataError, RefinerError, SettingError
from refiner.metrics import Estimate

KEPT_SCORES = import_module("refiner.audit.kept_scores")
SCENE = make_scene()
X, Y = SCENE.x, SCENE.y
OTHERS = SCENE.candidates.x[:, BATCH:], SCENE.candidates.y[:, BATCH:]
audited = partial(audit_membership, attack="alignment")
KNOWN: dict[str, Any] = {"non_members": OTHERS, "public": SCENE.public}


def trained_further() -> torch.nn.Module:
    """The model with other weights."""
    model = copy.deepcopy(SCENE.task.model)
    torch.nn.utils.vector_to_parameters(get_parameters(SCENE.task) + 0.1, model.parameters())
    return model


CONTROL = audited(SCENE.task, X, Y, defense="none", **KNOWN)


def test_members_of_undefended_uploads_are_found() -> None:
    assert CONTROL.level == "found" and CONTROL.auc == CONTROL.undefended
    assert CONTROL.auc.low is not None and CONTROL.auc.low > 0.5
    # Other clients' uploads say nothing about these candidates.
    assert CONTROL.blind is not None and CONTROL.blind.low is not None and CONTROL.blind.high is not None
    assert CONTROL.blind.low <= 0.5 <= CONTROL.blind.high
    assert CONTROL.same_labels and (CONTROL.clients, CONTROL.batch) == (12, 4)
    record = CONTROL.record()
    assert record["auc"]["value"] == CONTROL.auc.value and record["members"] == record["non_members"] == 48
    assert [point["fpr"] for point in record["tpr"]] == [0.01, 0.001]
    assert "none against alignment: members found; AUC 0." in CONTROL.sentence


def test_nothing_is_found_behind_much_noise() -> None:
    noise = "dp-gaussian:magnitude=100,clip=none"
    result = audited(SCENE.task, X, Y, defense=noise, control=CONTROL, **KNOWN)
    assert result.level == "not found" and result.undefended == CONTROL.auc and result.blind == CONTROL.blind
    assert result.auc.low is not None and result.auc.high is not None
    assert result.auc.low <= 0.5 <= result.auc.high
    again = audited(SCENE.task, X, Y, defense=make_defense(noise), **KNOWN)
    assert again.defense == "dp-gaussian" and torch.equal(again.members, result.members)


def test_there_is_no_verdict_where_the_attack_finds_nothing_without_a_defence() -> None:
    # A cosine that is not compared with a class depends on the label, which both groups share.
    result = audited(
        SCENE.task, X[:2], Y[:2], non_members=(OTHERS[0][:2], OTHERS[1][:2]),
        defense="gq:bits=8", attack="alignment:relative=false",
    )  # fmt: skip
    assert result.undefended.low is not None and result.undefended.low <= 0.5
    assert result.level == "no verdict"


def test_there_is_no_verdict_where_members_differ_from_non_members_already() -> None:
    for low, high, level in ((0.7, 0.95, "no verdict"), (0.2, 0.4, "found"), (0.51, 0.52, "found")):
        assert replace(CONTROL, blind=Estimate((low + high) / 2, low, high)).level == level


def test_members_who_score_low_are_told_apart_too() -> None:
    turned = replace(CONTROL, defense="made up", members=-CONTROL.members, non_members=-CONTROL.non_members)
    assert turned.level == "reversed" and turned.auc.value == pytest.approx(1 - CONTROL.auc.value)


def test_labels_are_the_same_if_each_is_as_frequent() -> None:
    """Labels that members and non-members do not share tell them apart, whatever the images are."""
    twice = tuple(torch.cat([part, part], 1) for part in OTHERS)
    more = audited(SCENE.task, X, Y, defense="none", non_members=twice, public=SCENE.public)
    assert more.same_labels and more.level == "found"
    other = (OTHERS[0], torch.zeros_like(OTHERS[1]))
    unfair = audited(SCENE.task, X, Y, defense="none", non_members=other, public=SCENE.public)
    assert not unfair.same_labels and unfair.level == "no verdict"


def test_one_client_has_no_interval_and_no_verdict() -> None:
    result = audited(
        SCENE.task, X[:1], Y[:1], non_members=(OTHERS[0][:1], OTHERS[1][:1]), public=SCENE.public,
        defense="none",
    )  # fmt: skip
    assert result.level == "no verdict" and result.auc.low is None and result.blind is None
    assert result.balanced_accuracy is None and result.record()["balanced_accuracy"] is None


def test_the_model_is_afterwards_as_it_was() -> None:
    before = get_parameters(SCENE.task).clone()
    training = Training(rounds=2, epochs=2, protocol=Protocol(lr=0.5))
    audited(SCENE.task, X, Y, defense="none", training=training, **KNOWN)
    assert torch.equal(get_parameters(SCENE.task), before)


def test_epochs_are_local_steps_over_the_same_samples() -> None:
    training = Training(epochs=3, protocol=Protocol(local_steps=2, lr=0.1))
    (observed,) = round_uploads(SCENE.task, NoDefense(), X, Y, training, seed=0)
    model = {name: value.clone() for name, value in SCENE.task.parameters().items()}
    total = torch.zeros(SCENE.task.size)
    for _ in range(3):
        for half in (slice(0, 2), slice(2, 4)):
            gradient = torch.func.grad(SCENE.task.loss)(model, X[5, half], Y[5, half])
            total += torch.cat([gradient[name].flatten() for name in SCENE.task.names])
            model = {name: value - 0.1 * gradient[name] for name, value in model.items()}
    torch.testing.assert_close(observed.gradient[5], total, atol=1e-5, rtol=1e-4)
    assert observed.samples == BATCH


def test_the_simulator_does_what_clients_do() -> None:
    training = Training(rounds=2, epochs=2, protocol=Protocol(lr=0.3))
    observations = round_uploads(SCENE.task, NoDefense(), X, Y, training, seed=0)
    public = AttackerImages(*SCENE.public, "public rows")
    simulated = round_simulator(SCENE.task, NoDefense(), public, observations, training).protect(X, Y, 3)
    for observation, gradient in zip(observations, simulated.gradients, strict=True):
        torch.testing.assert_close(gradient, observation.gradient)


@pytest.mark.parametrize("seed", [-1, -(2**33), 1.0, True])
def test_a_seed_that_is_no_natural_number_is_one_line(seed: Any) -> None:
    """Added to the simulation's own, a negative seed would be that of a victim."""
    observations, simulate = SCENE.observed()
    single = simulator(SCENE.task, NoDefense(), AttackerImages(*SCENE.public, "public rows"))
    assert single is not None and len(observations) == 1
    for protect in (simulate.protect, single.protect):
        with pytest.raises(SettingError, match=r"^seed = .*: expected an integer ≥ 0$"):
            protect(X, Y, seed)


def test_a_client_keeps_the_noise_of_its_images_in_all_rounds_and_epochs() -> None:
    """A secret key gives an image the same noise whenever it recurs; noise on gradients is always new."""
    by_image, by_draw = "refiner:start=centred,search=never", "dp-gaussian:magnitude=0.1,clip=none"
    still = Training(rounds=2, epochs=2, protocol=Protocol(local_steps=2, lr=1e-30))
    once = Training(protocol=Protocol(local_steps=2, lr=1e-30))
    found = []
    for defense, kept in ((by_image, True), (by_draw, False), (f"{by_image}+{by_draw}", False)):
        uploaded = round_uploads(SCENE.task, make_defense(defense), X, Y, still, seed=0)
        (single,) = round_uploads(SCENE.task, make_defense(defense), X, Y, once, seed=0)
        first, second = (o.gradient for o in uploaded)
        assert torch.equal(first, second) == kept
        assert torch.allclose(first, 2 * single.gradient, atol=1e-5) == kept
        found.append(torch.stack([first, second, single.gradient]).flatten(1))
    # In a chain only the noise on gradients is new: it alone remains without the part with the secret key.
    noise = found[2] - found[0]
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 5 / noise.shape[1] ** 0.5
    deviation = noise.std(1)
    assert float(deviation[0] / deviation[2]) == pytest.approx(2**0.5, rel=0.05)


def test_kept_scores_of_uploads_that_were_simulated_otherwise_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    attack = "likelihood:clients=40"
    audit = partial(
        audit_membership, SCENE.task, X, Y, defense="none", attack=attack, folder=tmp_path, **KNOWN,
        on_simulated=counts.append,
    )  # fmt: skip
    audit()
    once = len(counts)
    audit()
    assert len(counts) == once > 0
    monkeypatch.setattr(KEPT_SCORES, "UPLOADS_REVISION", UPLOADS_REVISION - 1)
    audit()
    assert len(counts) == 2 * once


def test_pairs_have_equal_labels_and_no_sample_twice() -> None:
    x, y = torch.arange(40.0)[:, None], torch.arange(40) % 3
    members, others, labels = pair_by_label(x, y, 3, 6, seed=1)
    assert torch.equal(y[members.long()[..., 0]], labels) and torch.equal(y[others.long()[..., 0]], labels)
    drawn = torch.cat([members.flatten(), others.flatten()])
    assert len(set(drawn.tolist())) == 36
    with pytest.raises(DataError, match="victims = 4: expected at most 3: 40 images make 19 pairs"):
        pair_by_label(x, y, 4, 6)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"x": X.flip(0)}, "data, x"),
        ({"non_members": (OTHERS[0].flip(0), OTHERS[1])}, "data, candidates"),
        ({"public": tuple(part[:-1] for part in SCENE.public)}, "data, public images"),
        ({"task": Task(trained_further(), example=X[0])}, "model, sha256"),
        ({"attack": "alignment:images=50"}, "attack, images"),
        ({"attack": "likelihood"}, "attack, name"),
        ({"training": Training(epochs=2)}, "training, epochs"),
        ({"threat": ThreatModel(labels=True)}, "threat, labels"),
        ({"seed": 1}, "seed"),
    ],
)
def test_a_control_of_another_audit_is_refused(change: dict[str, Any], difference: str) -> None:
    """A control from elsewhere would turn "no verdict" into "not found"."""
    arguments: dict[str, Any] = {"task": SCENE.task, "x": X, "y": Y, "defense": "gq:bits=8", **KNOWN} | change
    message = rf"control = .*: expected the same audit without a defence \(other: {difference}\)"
    with pytest.raises(DataError, match=message) as error:
        audited(**arguments, control=CONTROL)
    assert len(str(error.value).splitlines()) == 1 and error.value.field == "control"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"non_members": (OTHERS[0][:, :0], OTHERS[1][:, :0])},
            "non_members = .*expected one or more for each",
        ),
        (
            {"non_members": None},
            "non_members = None: expected a pair of tensors: samples .* and their lab",
        ),
        ({"non_members": OTHERS[0]}, "non_members = 'Tensor': expected a pair of tensors"),
        (
            {"non_members": (OTHERS[0].tolist(), OTHERS[1])},
            "non_members = 'list and Tensor': expected",
        ),
        ({"non_members": (X, Y)}, "non_members = .*48 of them are members too"),
        ({"public": (X.flatten(0, 1), Y.flatten())}, "public = .*48 of them are candidates, expected other"),
        ({"public": None}, "public = None: expected public images and the defence, which alignment needs"),
        ({"threat": ThreatModel(public=False)}, "alignment needs public"),
        ({"attack": "lire"}, "attack = 'lire': unknown"),
        ({"x": X[..., :3]}, r"x = .*expected samples \[V, B, 24\]"),
        ({"y": Y[:, :2]}, r"expected torch.int64 labels \[12, 4\]"),
        (
            {"y": 0 * Y, "non_members": (OTHERS[0], 0 * OTHERS[1])},
            "y = 'class 0 only': expected two classes or more",
        ),
        ({"public": (SCENE.public[0][:0], SCENE.public[1][:0])}, "public = .*expected one or more images"),
        ({"training": Training(protocol=Protocol(local_steps=3))}, "local_steps = 3: expected a divisor"),
        (
            {"defense": "gq", "control": replace(CONTROL, defense="gq")},
            r"control = .*: expected the same audit without a defence \(other: defense\)",
        ),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": X, "y": Y, "defense": "none", **KNOWN} | change
    with pytest.raises(RefinerError, match=message) as error:
        audited(SCENE.task, **arguments)
    assert len(str(error.value).splitlines()) == 1


def test_a_sum_of_clients_has_the_candidates_of_all() -> None:
    result = audited(
        SCENE.task, X, Y, defense="none", training=Training(protocol=Protocol(summed_clients=2)), **KNOWN
    )
    assert (result.clients, result.batch, result.members.shape[1]) == (6, 8, 8)


def test_public_images_of_one_class_only_stand_in_for_the_other() -> None:
    one_class = SCENE.public[0][::2], SCENE.public[1][::2]
    result = audited(SCENE.task, X, Y, non_members=OTHERS, public=one_class, defense="none")
    assert set(one_class[1].tolist()) == {0} and result.level == "found"


def test_simulated_clients_are_counted() -> None:
    counts: list[int] = []
    audited(
        SCENE.task, X, Y, defense="none", attack="likelihood:clients=40", on_simulated=counts.append, **KNOWN
    )
    # The control simulates them twice: also for the uploads of other clients.
    assert counts == sorted(set(counts)) and counts[-1] >= 2 * 40
