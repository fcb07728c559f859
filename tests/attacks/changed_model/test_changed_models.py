"""Attacks of a server that changes the model: exact without a defence, through sums and local steps too."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.attacks import (
    Attack,
    Imprint,
    KnownDefense,
    Loki,
    Observation,
    ThreatModel,
    TrapWeights,
    make_attack,
)
from refiner.attacks.changed_model.front_module import brightness_edges
from refiner.audit import Plan, audit
from refiner.audit.protocol import Protocol
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense, make_defense
from refiner.errors import DataError, RefinerError, SettingError, ThreatModelError
from refiner.models import MLP, make_model

MALICIOUS = ThreatModel(changed_model=True)
SAMPLE = load_sample()
IMAGES = F.avg_pool2d(SAMPLE.images[:24], 4)  # 8 × 8 pixels, so that the tests are quick
LABELS = SAMPLE.labels[:24]


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(MLP(input_shape=(3, 8, 8), hidden=16), example=IMAGES[:1])


def error_of_each(found: Tensor, truth: Tensor) -> Tensor:
    """The largest error of every original in the reconstruction closest to it, `[V, B]`."""
    apart = (found[:, None] - truth[:, :, None]).abs().flatten(3).amax(3)
    return apart.amin(2)


def observe(task: Task, x: Tensor, y: Tensor, defense: str = "none") -> Observation:
    return Observation.of(task, make_defense(defense).protect(task, x, y, seed=0))


def test_imprint_reads_every_image_that_is_alone_in_its_bin(task: Task) -> None:
    attack, x, y = Imprint(bins=3), IMAGES.view(3, 8, 3, 8, 8), LABELS.view(3, 8)
    changed = attack.changed_task(task, samples=8)
    result = attack.reconstruct(observe(changed, x, y), threat=MALICIOUS)
    bins = torch.bucketize(x.flatten(2).double().mean(2), brightness_edges(24, 0.473, 0.125))
    alone = (bins[:, :, None] == bins[:, None]).sum(2) == 1
    assert int(alone.sum()) >= 12  # of 24
    assert float(error_of_each(result.x, x)[alone].max()) < 1e-3
    # A bin with two images gives a mixture.
    assert float(error_of_each(result.x, x)[~alone].min()) > 1e-3
    assert not bool(result.diverged.any()) and float(result.objective.max()) < 1e-5


@pytest.mark.processes
@pytest.mark.parametrize("attack", [Imprint(), Loki()])
def test_a_resnet_can_be_changed_as_well(attack: Attack) -> None:
    torch.manual_seed(0)
    x, y = IMAGES[None, :4], LABELS[None, :4]
    changed = attack.changed_task(
        Task(make_model("resnet10", input_shape=(3, 8, 8)), example=x[0]), samples=4
    )
    result = attack.reconstruct(observe(changed, x, y), threat=MALICIOUS)
    assert float(error_of_each(result.x, x).min()) < 1e-3


@pytest.mark.parametrize("attack", ["imprint", "loki"])
def test_the_bins_of_an_audit_fit_the_public_images(attack: str) -> None:
    """Dark images all share the bins of CIFAR-10's brightness; an attacker knows better."""
    dark = 0.2 * F.avg_pool2d(SAMPLE.images[:24], 2)
    torch.manual_seed(0)
    task = Task(MLP(input_shape=(3, 16, 16), hidden=16), example=dark[:1])
    read = []
    for public in (True, False):
        threat = ThreatModel(changed_model=True, public=public)
        plan = Plan.of(task, dark[None, :8], LABELS[None, :8], attack=attack, public=dark[8:], threat=threat)
        expected = pytest.approx(float(dark[8:].mean())) if public else None
        assert plan.attack.settings()["mean"] == expected
        seen = Observation.of(plan.task, NoDefense().protect(plan.task, plan.x, plan.y))
        found = plan.attack.reconstruct(seen, threat=MALICIOUS).x
        read.append(int((error_of_each(found, dark[None, :8]) < 1e-3).sum()))
    assert read[0] >= 4 > read[1]


def test_a_stage_passes_the_public_images_on() -> None:
    prepared = make_attack("imprint:std=0.3+denoiser").prepared(0.2 * IMAGES, KnownDefense({}, {}))
    assert prepared.settings()["imprint.mean"] == pytest.approx(float(0.2 * IMAGES.mean()))
    assert prepared.settings()["imprint.std"] == 0.3


def test_a_batch_of_one_class_is_read_as_well(task: Task) -> None:
    attack, x = Imprint(bins=64), IMAGES[:4][None]
    changed = attack.changed_task(task, samples=4)
    observation = observe(changed, x, torch.full((1, 4), 3))
    assert float(error_of_each(attack.reconstruct(observation, threat=MALICIOUS).x, x).max()) < 1e-3


def test_trap_weights_return_only_images_that_several_units_confirm(task: Task) -> None:
    attack, x, y = TrapWeights(units=512, factor=0.9), IMAGES[:8].view(2, 4, 3, 8, 8), LABELS[:8].view(2, 4)
    changed = attack.changed_task(task, samples=4)
    weight = changed.parameters()["front.encoder.weight"]
    assert bool(((weight < 0).sum(1) == 96).all()) and bool(((weight > 0).sum(1) == 96).all())
    errors = error_of_each(attack.reconstruct(observe(changed, x, y), threat=MALICIOUS).x, x)
    assert int((errors < 1e-3).sum()) >= 4


def test_loki_reads_all_clients_off_their_sum(task: Task) -> None:
    attack, protocol = Loki(clients=3, bins=64), Protocol(summed_clients=3)
    x, y = IMAGES.view(6, 4, 3, 8, 8), LABELS.view(6, 4)
    changed = attack.changed_task(task, samples=12)
    _, observation = uploads(
        changed, NoDefense(), x, y, labels=False, seed=0, protocol=protocol, send_to=attack.send_to
    )
    assert (observation.victims, observation.samples) == (2, 12)
    found = attack.reconstruct(observation, threat=MALICIOUS).x
    # Client by client: images of one are found among its own.
    errors = error_of_each(protocol.by_client(found), x)
    assert int((errors < 1e-3).sum()) >= 20  # of 24: some share a bin
    # The sum is that of a plain loop over clients, each with its own model.
    model, total = changed.model, torch.zeros(changed.size)
    for client in range(3):
        attack.send_to(changed, client, 3)
        loss = F.cross_entropy(model(x[client]), y[client])
        named = dict(model.named_parameters())
        grads = torch.autograd.grad(loss, [named[name] for name in changed.names])
        total += torch.cat([g.flatten() for g in grads]) / 3
    torch.testing.assert_close(observation.gradient[0], total, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("defense", ["none", "refiner:chunk=1,search=never,alpha=0"])
def test_local_steps_upload_the_change_of_a_plain_loop(task: Task, defense: str) -> None:
    x, y = IMAGES[:8].view(2, 4, 3, 8, 8), LABELS[:8].view(2, 4)
    before = {name: value.clone() for name, value in task.parameters().items()}
    _, observation = uploads(
        task, make_defense(defense), x, y, labels=False, seed=0, protocol=Protocol(local_steps=2, lr=0.5)
    )
    for name, value in task.parameters().items():
        assert torch.equal(value, before[name])
    for client in range(2):
        current = {name: value.clone() for name, value in before.items()}
        for step in range(2):
            rows = slice(2 * step, 2 * step + 2)
            leaves = {name: value.requires_grad_() for name, value in current.items()}
            loss = F.cross_entropy(
                torch.func.functional_call(task.model, leaves, (x[client, rows],)), y[client, rows]
            )
            grads = torch.autograd.grad(loss, list(leaves.values()))
            current = {n: (v - 0.5 * g).detach() for (n, v), g in zip(leaves.items(), grads, strict=True)}
        change = torch.cat([((before[n] - current[n]) / 0.5).flatten() for n in task.names])
        torch.testing.assert_close(observation.gradient[client], change, rtol=1e-3, atol=1e-5)


@pytest.mark.processes
def test_an_audit_of_sums_judges_every_image(task: Task) -> None:
    images, labels = SAMPLE.images[:8].view(4, 2, 3, 32, 32), SAMPLE.labels[:8].view(4, 2)
    large = Task(MLP(hidden=8), example=images[0])
    found = audit(
        large,
        images,
        labels,
        defense="none",
        attack="loki:clients=2,bins=64",
        threat=MALICIOUS,
        protocol=Protocol(summed_clients=2, local_steps=2, lr=1e-4),
    )
    assert found.means["psnr"].value > 60 and found.verdict.level == "visible"
    assert len(found.findings) == 8 and len(found.objective) == len(found.diverged) == 4
    assert found.settings["protocol"] == {"local_steps": 2, "lr": 1e-4, "summed_clients": 2}
    assert "LokiModule" in str(found.settings["model"])


def test_the_denoiser_follows_a_changed_model(task: Task) -> None:
    attack = make_attack("imprint:bins=4+denoiser:images=32,epochs=1")
    changed = attack.changed_task(task, samples=2)
    assert "front.encoder.weight" in changed.shapes
    assert attack.needs_for(task) == {"changed_model", "public", "defense"}


@pytest.mark.parametrize("attack", [Imprint(), Loki(), TrapWeights()])
def test_what_is_missing_is_one_line(attack: Attack, task: Task) -> None:
    x, y = IMAGES[None, :2], LABELS[None, :2]
    with pytest.raises(ThreatModelError, match="needs changed_model"):
        attack.reconstruct(observe(attack.changed_task(task, 2), x, y))
    with pytest.raises(DataError, match=r"^model = 'MLP': expected the model that .* sends"):
        attack.reconstruct(observe(task, x, y), threat=MALICIOUS)


class OneRow(nn.Module):
    """Takes one row at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        out: Tensor = self.linear(x.view(1, 4))
        return out


def test_bad_settings_and_models_are_one_line(task: Task) -> None:
    rows = Task(OneRow(), example=torch.zeros(1, 4))
    with pytest.raises(DataError, match=r"^model = 'OneRow': nothing can be put in front of it"):
        Imprint().changed_task(rows, 1)
    with pytest.raises(SettingError, match=r"^bins = 100000: expected an integer in \[1, 1000\]"):
        make_attack("loki:bins=100000")
    with pytest.raises(DataError, match=r"^input shape = \[4\]: expected images"):
        Loki().check(rows)
    with pytest.raises(DataError, match=r"^clients = 3: expected as many as a sum has .*its 4 images"):
        Loki(clients=3).changed_task(task, 4)
    changed = Loki(clients=2).changed_task(task, 4)
    with pytest.raises(DataError, match=r"^clients = 2: expected 3, as many as a sum has"):
        Loki(clients=2).send_to(changed, 0, 3)
    with pytest.raises(DataError, match=r"^clients = 2: expected 1, as many as a sum has"):
        audit(task, IMAGES[None, :2], LABELS[None, :2], attack="loki:clients=2", threat=MALICIOUS)
    with pytest.raises(DataError, match=r"^summed_clients = 3: expected a divisor of the 4 clients"):
        Protocol(summed_clients=3).observations(4, 2)
    with pytest.raises(DataError, match=r"^local_steps = 3: expected a divisor of the batch of 4"):
        Protocol(local_steps=3).observations(4, 4)
    for wrong in ("bins=0", "std=0", "mean=inf", "scale=-1", "input_range=(1,0)"):
        with pytest.raises(SettingError, match=wrong.partition("=")[0]):
            make_attack(f"imprint:{wrong}")
    for text in ("trap-weights:factor=2", "loki:tap=0", "imprint+loki", "spear:starts=0"):
        with pytest.raises(RefinerError):
            make_attack(text)
