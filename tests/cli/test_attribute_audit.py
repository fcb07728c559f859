"""`refiner audit --attack attribute`: faces of twelve invented people, and one-line errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from refiner import Task
from refiner.audit import load_attribute_clients
from refiner.cli import app
from refiner.data import write_image_grid
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.inference import AttributeInference, AttributePrediction
from refiner.models import make_model

PEOPLE, IMAGES = 48, 6


@pytest.fixture(scope="module")
def lfw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People whose images are bright if they are women; the first has more images."""
    folder = tmp_path_factory.mktemp("lfw")
    counts = torch.full((PEOPLE,), IMAGES)
    counts[0] = 40
    person = torch.repeat_interleave(torch.arange(PEOPLE), counts)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 80, (len(person), 3, 32, 32), generator=generator)
    bright = 120 * (person % 2)[:, None, None, None] + 40 * (person == 0)[:, None, None, None]
    pixels = (noise + bright).byte()
    for number in range(2):
        write_image_grid(folder / f"lfw_32_{number}.webp", pixels)
    numbers = torch.cat([torch.arange(int(count)) for count in counts]).tolist()
    names = [f"P{p:02}_A_{n + 1:04}.jpg" for p, n in zip(person.tolist(), numbers, strict=True)]
    gender = (1 - person % 2).numpy().astype(np.int8)
    np.savez(folder / "lfw_labels.npz", names=np.array(names), gender=gender)
    return folder


def audit(lfw: Path, *words: object, code: int = 0) -> Result:
    line = ["audit", "--data", "lfw", "--root", lfw, "--model", "mlp:hidden=16", *words]
    result = CliRunner().invoke(app, [str(word) for word in line])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.processes
def test_gender_is_found_without_a_defence_and_not_in_noise(lfw: Path, tmp_path: Path) -> None:
    noise = "dp-gaussian:magnitude=100,clip=none"
    words = (
        "--attack",
        "attribute:clients=60,epochs=2,max_features=32",
        "--attribute",
        "gender",
        "--batch",
        "2",
    )
    result = audit(lfw, *words, "--defense", "none", "--defense", noise, "--out", tmp_path, "--json")
    printed = json.loads(result.stdout)
    record = printed["attribute"]
    plain, noisy = record["audits"]
    assert plain["level"] == "found" and plain["auc"]["value"] > 0.9 and noisy["level"] == "not found"
    assert noisy["undefended"] == plain["auc"] and plain["clients"] == 24 and "48 people" in record["source"]
    assert json.loads((tmp_path / "attribute" / "results.json").read_text()) == record
    assert "What uploads reveal of an attribute: gender" in Path(printed["report"]).read_text()
    assert "none: gender found in 24 uploads" in result.stderr


@pytest.mark.processes
def test_an_interrupted_audit_continues(lfw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infer, calls = AttributeInference.infer, []

    def interrupted(*arguments: Any, **named: Any) -> AttributePrediction:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return infer(*arguments, **named)

    monkeypatch.setattr(AttributeInference, "infer", interrupted)
    attack = "attribute:clients=8,epochs=1,max_features=4"
    words = ("--attack", attack, "--attribute", "gender", "--batch", "2", "--out", tmp_path)
    words += ("--defense", "gq", "--defense", "none")
    assert audit(lfw, *words, code=130).stderr.endswith(
        "stopped after 1 of 2 audits; run the same command to continue\n"
    )
    shown = audit(lfw, *words).stderr
    assert len(calls) == 3 and "none: gender" in shown and "gq: gender" in shown
    record = json.loads((tmp_path / "attribute" / "results.json").read_text())
    assert [row["defense"] for row in record["audits"]] == ["gq", "none"]
    assert 'class="band"' in (tmp_path / "report.html").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("reconstruction", [(), ("--attack", "linear", "--public-images", "100")])
def test_questions_and_reconstructions_share_a_report(
    reconstruction: tuple[str, ...], lfw: Path, tmp_path: Path
) -> None:
    words = ("--attack", "attribute:clients=8,epochs=1,max_features=4", "--attribute", "gender")
    words += ("--attack", "membership:method=alignment", "--defense", "none", *reconstruction)
    result = audit(lfw, *words, "--batch", "2", "--victims", "4", "--out", tmp_path, "--json")
    record = json.loads(result.stdout)
    for question in ("attribute", "membership"):
        assert record[question] == json.loads((tmp_path / question / "results.json").read_text())
        assert [row["defense"] for row in record[question]["audits"]] == ["none"]
    page = Path(record["report"]).read_text()
    assert "Who has the attribute: gender" in page and "Who was a member" in page
    assert ("audits" in record) == ("can be reconstructed" in page) == bool(reconstruction)


def test_recup_is_fitted_to_the_public_people_of_an_audit(lfw: Path, tmp_path: Path) -> None:
    file = tmp_path / "zoo.safetensors"
    words = ["recup", "fit", "--data", "lfw", "--root", lfw, "--model", "mlp:hidden=16", "--batch", "2"]
    words += ["--attribute", "gender", "--clients", "40", "--members", "3", "--out", file, "--json"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    people = load_attribute_clients("lfw", "gender", root=lfw, batch=2)
    assert record["public_images"] == len(people.public[1]) and record["balanced_accuracy"] > 0.8
    defense = make_defense(f"recup:file={file},budget=0.1")
    model = make_model("mlp", classes=people.classes, hidden=16)
    task = Task(model, example=people.x[0])
    assert defense.protect(task, people.x[:2], people.y[:2]).samples == 2
    wrong = CliRunner().invoke(
        app, [str(word) for word in (*words, "--mean", "0.5,0.5,0.5", "--std", "1,0,1")]
    )
    assert wrong.exit_code == 2 and "std" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_nobody_is_on_both_sides(lfw: Path) -> None:
    for attribute, shares in (("gender", False), ("gender", True), ("person", False)):
        people = load_attribute_clients("lfw", attribute, root=lfw, batch=2, shares=shares)
        assert not set(people.groups[0].flatten().tolist()) & set(people.groups[1].tolist())
        assert people.attribute.shape == (people.x.shape[:2] if shares else people.x.shape[:1])
        if attribute == "person":
            assert people.classes == 2 and set(people.y.flatten().tolist()) == {1}
            others = people.groups[0][people.attribute == 0]
            assert bool((others == others[:, :1]).all())
        elif not shares:
            # All clients have people of their own.
            sets = [set(row) for row in people.groups[0].tolist()]
            assert sum(map(len, sets)) == len(set.union(*sets))
            assert int(people.attribute.sum()) * 2 == len(people.attribute)


def test_the_number_of_people_in_a_batch_tells_nothing(lfw: Path) -> None:
    """The first man has 40 images, which would fill batches alone; everybody counts with as many."""
    for batch, people_in_it in ((4, 1), (7, 2)):
        people = load_attribute_clients("lfw", "gender", root=lfw, batch=batch)
        assert {len(set(row)) for row in people.y.tolist()} == {people_in_it}


def test_own_data_bring_their_task_attribute_and_people(tmp_path: Path) -> None:
    """Eight people with numbers of their own, six images each; the task says nothing of the attribute."""
    file, person = tmp_path / "patients.npz", np.repeat(np.arange(8) * 100, 6)
    images = np.random.default_rng(0).integers(0, 255, (48, 8, 8, 3), dtype=np.uint8)
    task = np.arange(48) % 3
    np.savez(file, images=images, labels=task, people=person, smoker=person // 100 % 2 == 1)
    clients = load_attribute_clients(str(file), "smoker", batch=2, clients=8, least_images=6)
    assert clients.classes == 3 and "task one of 3 classes" in clients.source
    private, public = (groups.flatten() for groups in clients.groups)
    assert len(set(private.tolist())) == 4 and not set(private.tolist()) & set(public.tolist())
    assert clients.attribute.tolist() == [0, 0, 1, 1]  # nobody belongs to two clients
    # Each image keeps its label and the value of its person, who is numbered anew.
    rows = {image.tobytes(): row for row, image in enumerate(images)}
    found = clients.x.mul(255).round().byte().permute(0, 1, 3, 4, 2).flatten(0, 1).numpy()
    numbers = [rows[image.tobytes()] for image in found]
    assert clients.y.flatten().tolist() == task[numbers].tolist()
    assert private.tolist() == (person[numbers] // 100).tolist()
    assert clients.attribute.repeat_interleave(2).tolist() == (private % 2).tolist()
    with pytest.raises(DataError, match="attribute = 'age': expected one of smoker"):
        load_attribute_clients(str(file), "age")


def test_wrong_options_are_one_line(lfw: Path, tmp_path: Path) -> None:
    cases = [
        (("--attack", "attribute"), "--attack = 'attribute': needs --attribute NAME, such as gender of lfw"),
        (
            ("--attack", "attribute", "--attack", "attribute:epochs=3", "--attribute", "gender"),
            "--attack = 'attribute:epochs=3': expected attribute once",
        ),
        (
            ("--attack", "dlg", "--attribute", "gender"),
            "--attribute = 'gender': only with --attack attribute",
        ),
        (("--share",), "--share = True: only with --attack attribute"),
        (("--attack", "atribute"), "--attack = 'atribute': unknown; did you mean 'attribute'?"),
        (("--attribute", "age"), "--attribute = 'age': expected one of gender, person"),
        (("--attribute", "gender", "--size", "8"), "--size = 8: does not apply to an attribute"),
        (
            (*("--attack", "attribute", "--attribute", "gender", "--attack", "membership"), "--epochs", "3"),
            "--epochs = 3: does not apply to an attribute: audit it in a command of its own",
        ),
        (("--attribute", "gender", "--mean", "0.5", "--std", "0"), "std = 0.0: expected a number in"),
        (("--attribute", "gender", "--deny", "public"), "attribute needs public"),
        (("--attribute", "gender", "--defense", "recup"), "recup needs fitted attribute classifiers"),
        (
            ("--attribute", "gender", "--batch", "90"),
            "--batch = 90: expected a batch that leaves two clients",
        ),
    ]
    for words, message in cases:
        result = audit(lfw, *words, "--out", tmp_path, code=2)
        assert message in result.stderr and result.stderr.count("\n") == 1
    with pytest.raises(DataError, match="has no attributes in these files"):
        load_attribute_clients("sample", "gender")
