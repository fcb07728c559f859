"""A server that folds images: exact without a defence and behind a search, and at its bound without one."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from refiner.attacks import Folds, Observation, ThreatModel, make_attack
from refiner.attacks.changed_model.coordinate_estimate import CoordinateEstimate
from refiner.attacks.changed_model.folding_module import folding_module, triangle_wave
from refiner.attacks.stages.wrapped_attack import WrappedAttack
from refiner.audit import audit
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.plan import Plan
from refiner.audit.protocol import Protocol
from refiner.audit.summary import verdict_note
from refiner.audit.uploads import simulator, uploads_in_rounds
from refiner.core import Task
from refiner.data import load_public_sample, load_sample
from refiner.defenses import NoDefense, Refiner, make_defense
from refiner.errors import DataError, SettingError, ThreatModelError
from refiner.models import MLP
from refiner.shaped_noise import NaturalNoise

MALICIOUS = ThreatModel(changed_model=True, labels=True)
CLASSES, BATCH = 12, 8
IMAGES = F.avg_pool2d(load_sample().images[:16], 4).double().view(2, BATCH, 3, 8, 8)
LABELS = torch.stack([torch.arange(BATCH), torch.arange(BATCH).flip(0) + 3])
PUBLIC = F.avg_pool2d(load_public_sample().images[:400], 4).double()


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(MLP(CLASSES, input_shape=(3, 8, 8), hidden=32).double(), example=IMAGES[0])


def attacked(
    task: Task, text: str, attack: Folds, y: Tensor = LABELS, protocol: Protocol | None = None
) -> Tensor:
    """The reconstructions of all images."""
    protocol = protocol or Protocol()
    defense = make_defense(text)
    changed = attack.changed_task(task, protocol.observations(*y.shape)[1])
    seen = uploads_in_rounds(changed, defense, IMAGES, y, attack, labels=True, seed=0, protocol=protocol)[1]
    public = AttackerImages(PUBLIC, torch.zeros(len(PUBLIC), dtype=torch.long), "public")
    simulate = simulator(changed, defense, public, protocol=protocol, attack=attack)
    return attack.reconstruct(seen, threat=MALICIOUS, simulator=simulate).x


def mean_psnr(found: Tensor) -> float:
    return float(-10 * (found.view_as(IMAGES) - IMAGES).square().flatten(2).mean(2).log10().mean())


@given(st.floats(-20, 20), st.floats(0.1, 3), st.floats(-2, 2))
def test_a_wave_rises_and_falls_by_as_much_as_its_argument_changes(
    z: float, length: float, begin: float
) -> None:
    here = triangle_wave(torch.tensor(z, dtype=torch.float64), length, begin)
    again = triangle_wave(torch.tensor(z + 2 * length, dtype=torch.float64), length, begin)
    mirrored = triangle_wave(torch.tensor(2 * begin + length - z, dtype=torch.float64), length, begin)
    assert abs(float(here)) <= length / 2 + 1e-9
    assert float(here) == pytest.approx(float(again), abs=1e-9) == pytest.approx(float(mirrored), abs=1e-9)


@pytest.mark.parametrize(
    "protocol", [Protocol(), Protocol(local_steps=2, lr=1e-6), Protocol(summed_clients=2)]
)
def test_undefended_images_come_back_exactly(task: Task, protocol: Protocol) -> None:
    labels = torch.arange(16).remainder(11).view(2, BATCH) if protocol.summed_clients > 1 else LABELS
    found = attacked(task, "none", Folds(uploads=2), labels, protocol).view_as(IMAGES)
    flat = labels.flatten()
    alone = (
        (flat[:, None] == flat).sum(1) == 1
        if protocol.summed_clients > 1
        else torch.ones(16, dtype=torch.bool)
    )
    assert int(alone.sum()) >= 6
    assert float((found - IMAGES).flatten(0, 1)[alone].abs().max()) < 1e-3


@pytest.mark.processes
def test_a_search_gives_images_away_however_strong_its_noise(task: Task) -> None:
    text = "refiner:search=always,alpha=10,iterations=12"
    one, six = (mean_psnr(attacked(task, text, Folds(uploads=n, simulated=32))) for n in (1, 6))
    assert one < 10 and six > 19, (one, six)


@pytest.mark.processes
def test_without_a_search_three_uploads_tell_what_one_tells(task: Task) -> None:
    one, three = (mean_psnr(attacked(task, "refiner:search=never", Folds(uploads=n))) for n in (1, 3))
    assert abs(three - one) < 0.5 and three < 17


def test_images_that_share_their_label_are_read_as_their_mean(task: Task) -> None:
    labels = LABELS.clone()
    labels[0, 1] = labels[0, 0]
    found = attacked(task, "none", Folds(uploads=1), labels)
    mean = IMAGES[0, :2].mean(0)
    torch.testing.assert_close(found[0, 0], mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(found[0, 1], mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(found[0, 2:], IMAGES[0, 2:], rtol=0, atol=1e-3)


@pytest.mark.processes
def test_inferred_labels_are_those_of_the_batch_after_local_steps_too(task: Task) -> None:
    torch.manual_seed(1)
    biased = Task(MLP(CLASSES, input_shape=(3, 8, 8), hidden=32).double(), example=IMAGES[0])
    with torch.no_grad():
        biased.model.head.bias[0] = 2.0  # the constant image is most probably of class 0
    attack, protocol = Folds(uploads=1, scale=1), Protocol(local_steps=2)
    for model, labels in ((task, LABELS), (biased, LABELS % 7)):
        changed = attack.changed_task(model, BATCH)
        seen = uploads_in_rounds(
            changed, NoDefense(), IMAGES, labels, attack, labels=False, seed=0, protocol=protocol
        )[1]
        public = AttackerImages(PUBLIC, torch.zeros(len(PUBLIC), dtype=torch.long), "public")
        simulate = simulator(changed, NoDefense(), public, protocol=protocol, attack=attack)
        found = attack.reconstruct(seen, threat=ThreatModel(changed_model=True), simulator=simulate)
        assert torch.equal(found.labels, labels.sort(1).values)


def test_a_batch_of_all_classes_is_read_roughly() -> None:
    torch.manual_seed(1)
    few = Task(MLP(BATCH, input_shape=(3, 8, 8), hidden=32).double(), example=IMAGES[0])
    found = attacked(few, "none", Folds(uploads=1), torch.arange(BATCH).expand(2, -1))
    assert mean_psnr(found) > 17


@pytest.mark.processes
def test_uploads_of_zeros_and_of_nan_give_finite_images(task: Task) -> None:
    found = attacked(task, "pruning:rate=0.999,scope=global", Folds(uploads=2))
    assert bool(found.isfinite().all())
    attack = Folds(uploads=1)
    changed = attack.changed_task(task, BATCH)
    seen = Observation.of(changed, NoDefense().protect(changed, IMAGES, LABELS), labels=LABELS)
    seen.gradient[1] = torch.nan
    public = AttackerImages(PUBLIC, torch.zeros(len(PUBLIC), dtype=torch.long), "public")
    simulate = simulator(changed, NoDefense(), public, attack=attack)
    result = attack.reconstruct(seen, threat=MALICIOUS, simulator=simulate)
    assert result.diverged.tolist() == [False, True] and bool(result.x.isfinite().all())


def test_bundled_statistics_and_the_wave_stay_as_they_were(task: Task) -> None:
    attack = Folds(uploads=2)
    large = Task(MLP(CLASSES, hidden=8).double(), example=torch.zeros(1, 3, 32, 32).double())
    front = folding_module(attack.changed_task(large, 4))
    assert front.statistics.mean.dtype == torch.float64
    assert NaturalNoise.bundled().mean.dtype == torch.float32
    changed = attack.changed_task(task, BATCH)
    wave = folding_module(changed).wave.clone()

    def stop(done: int, total: int) -> None:
        if done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uploads_in_rounds(
            changed, NoDefense(), IMAGES, LABELS, attack, labels=False, seed=0, on_progress=stop
        )
    assert torch.equal(folding_module(changed).wave, wave)


@pytest.mark.parametrize("attack", [Folds(), make_attack("folds+denoiser")])
def test_an_audit_tells_it_the_noise_and_the_radius_of_the_defence(attack: Folds, tmp_path: Path) -> None:
    images = F.avg_pool2d(load_sample().images[:16], 2)  # large enough for an audit's metrics
    task = Task(MLP(CLASSES, input_shape=(3, 16, 16), hidden=8), example=images[:1])
    x, public = images.view(2, BATCH, 3, 16, 16), F.avg_pool2d(load_public_sample().images[:400], 2)
    pool = (public, torch.zeros(len(public), dtype=torch.long))
    fitted, file = NaturalNoise.fit(public), tmp_path / "fitted.safetensors"
    fitted.save(file)
    defense = Refiner(white=0.25, radius=0.5, statistics=str(file))

    def prepared(given: Folds, threat: ThreatModel) -> Folds:
        plan = Plan.of(task, x, LABELS, defense=defense, attack=given, pool=pool, threat=threat)
        inner = plan.attack.attack if isinstance(plan.attack, WrappedAttack) else plan.attack
        assert isinstance(inner, Folds)
        return inner

    knows = prepared(attack, MALICIOUS)
    assert knows.noise is not None and knows.radius == 0.5
    torch.testing.assert_close(knows.noise.covariance, fitted.with_white(0.25).covariance)
    front = folding_module(knows.changed_task(task, BATCH))
    torch.testing.assert_close(front.statistics.covariance, knows.noise.covariance)
    given = prepared(Folds(radius=2.0, noise=NaturalNoise.bundled()), MALICIOUS)
    assert given.radius == 2.0 and given.noise is NaturalNoise.bundled()


def test_stages_after_it(task: Task) -> None:
    with pytest.raises(
        DataError, match=r"^attack = 'folds\+adaptive': expected adaptive after an attack of one"
    ):
        make_attack("folds+adaptive").check(task)
    chain = make_attack("folds:uploads=1+denoiser")
    changed = chain.changed_task(task, BATCH)
    public = AttackerImages(PUBLIC[:100], torch.zeros(100, dtype=torch.long), "public")
    simulate = simulator(changed, NoDefense(), public, attack=chain)
    seen = uploads_in_rounds(changed, NoDefense(), IMAGES, LABELS, chain, labels=True, seed=0)[1]
    with pytest.raises(DataError, match=r"^public_images = 100: expected at least 200 .* folds\+denoiser"):
        chain.reconstruct(seen, threat=MALICIOUS, simulator=simulate)


def test_the_estimate_of_a_normal_coordinate_is_the_closed_form() -> None:
    draws = torch.Generator().manual_seed(0)
    z, noise = (torch.randn(200_000, 1, generator=draws) for _ in range(2))
    estimate = CoordinateEstimate([lambda z: z], z, [z + 0.5 * noise], z, torch.ones(1))
    seen = torch.tensor([[-1.5], [0.0], [2.0]])
    torch.testing.assert_close(estimate([seen])[0], seen / (1 + 0.5**2), rtol=0, atol=0.05)


def test_every_round_has_its_own_model_and_the_first_is_restored(task: Task) -> None:
    attack = Folds(uploads=3)
    changed = attack.changed_task(task, BATCH)
    front = folding_module(changed)
    first = front.wave.clone()
    seen = uploads_in_rounds(changed, NoDefense(), IMAGES, LABELS, attack, labels=False, seed=0)[1]
    assert torch.equal(front.wave, first) and len(seen) == 3
    model = dict(changed.model.named_parameters())
    for number, observation in enumerate(seen):
        attack.send_in_round(changed, number)
        loss = F.cross_entropy(changed.model(IMAGES[0]), LABELS[0])
        grads = torch.autograd.grad(loss, [model[name] for name in changed.names])
        torch.testing.assert_close(observation.gradient[0], torch.cat([g.flatten() for g in grads]))


@pytest.mark.processes
def test_an_audit_runs_it_by_name() -> None:
    sample = load_sample()
    order = torch.cat([(sample.labels == label).nonzero()[:2, 0] for label in range(8)])
    images, labels = (
        sample.images[order].view(8, 2, 3, 32, 32).transpose(0, 1),
        sample.labels[order].view(8, 2).T,
    )
    result = audit(
        Task(MLP(hidden=32), example=images[0]),
        images.contiguous(),
        labels.contiguous(),
        defense="dp-gaussian:magnitude=10",
        attack="folds:uploads=2,simulated=16",
        metrics=["identification"],
        threat=ThreatModel(changed_model=True),
    )
    assert "folds sees 2 uploads of each batch, for as many models" in verdict_note([result])
    assert result.control is not None and result.control.psnr > 30 and result.verdict.level == "neither"


class OneImage(nn.Module):
    """Takes one image at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        out: Tensor = self.linear(x.reshape(1, 192))
        return out


def test_what_is_missing_is_one_line(task: Task) -> None:
    attack = Folds(uploads=2)
    changed = attack.changed_task(task, BATCH)
    public = AttackerImages(PUBLIC, torch.zeros(len(PUBLIC), dtype=torch.long), "public")
    simulate = simulator(changed, NoDefense(), public, attack=attack)
    one = Observation.of(changed, NoDefense().protect(changed, IMAGES, LABELS), labels=LABELS)
    with pytest.raises(ThreatModelError, match="needs changed_model"):
        attack.reconstruct([one, one], threat=ThreatModel(labels=True), simulator=simulate)
    with pytest.raises(DataError, match=r"^observations = 1: expected 2 uploads$"):
        attack.reconstruct(one, threat=MALICIOUS, simulator=simulate)
    with pytest.raises(DataError, match=r"^labels = \[0, 0, .*: expected different ones in a batch"):
        attacked(task, "none", attack, torch.zeros_like(LABELS))
    # In an audit also where the attacker is not given the labels.
    with pytest.raises(DataError, match=r"^labels = \[0, 0, .*: expected different ones in a batch"):
        audit(task, IMAGES, torch.zeros_like(LABELS), attack=attack, threat=ThreatModel(changed_model=True))
    with pytest.raises(DataError, match=r"^model = 'OneImage': nothing can be put in front of it"):
        attack.changed_task(Task(OneImage(), example=IMAGES[0, :1].float()), 1)
    with pytest.raises(DataError, match=r"^model = 'MLP': expected the model that folds sends"):
        attack.send_in_round(task, 0)
    with pytest.raises(DataError, match=r"^classes = 2: expected 3 to"):
        attack.changed_task(Task(MLP(2, input_shape=(3, 8, 8), hidden=4), example=IMAGES[0].float()), 4)
    with pytest.raises(DataError, match=r"^input shape = \[4\]: expected images \[3, H, W\] for folds$"):
        attack.changed_task(Task(nn.Linear(4, 3), example=torch.zeros(2, 4)), 4)
    with pytest.raises(DataError, match=r"^model = torch.bfloat16: expected float32 or float64 for folds$"):
        attack.changed_task(
            Task(MLP(4, hidden=4).bfloat16(), example=torch.zeros(1, 3, 32, 32).bfloat16()), 4
        )
    for wrong in ("uploads=0", "uploads=7", "radius=0", "noise=1", "scale=-1", "simulated=1"):
        with pytest.raises(SettingError, match=wrong.partition("=")[0]):
            make_attack(f"folds:{wrong}")
