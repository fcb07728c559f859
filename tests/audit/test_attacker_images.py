"""Audits with attacks that learn: which images they learn from, and whose noise they never see."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from refiner.attacks import LinearReconstruction, ThreatModel
from refiner.audit import Plan, audit, load_victims, victims
from refiner.audit.attacker_images import AttackerImages, choose_attacker_images
from refiner.audit.seeds import (
    ROUND_SEED,
    SEED_OFFSET,
    SIMULATION,
    STEP_SEED,
    TUNING,
    VICTIMS,
    simulation_seed,
)
from refiner.audit.uploads import simulator, uploads
from refiner.core import Task
from refiner.data import ImageDataset, Sample, load_public_sample, load_sample
from refiner.defenses import Refiner, make_defense
from refiner.errors import DataError, RefinerError, ThreatModelError

LINEAR = LinearReconstruction()


@pytest.fixture(scope="module")
def public() -> Sample:
    return load_public_sample()


def test_an_audit_learns_from_the_bundled_public_images(task: Task, sample: Sample) -> None:
    x, y = sample.images[:4], sample.labels[:4]
    plan, plain = (Plan.of(task, x, y, attack=attack) for attack in (LINEAR, "inverting"))
    assert plan.attacker_images is not None and len(plan.attacker_images.images) == 3000
    attacker = plan.settings["attacker images"]
    assert isinstance(attacker, dict) and attacker["source"] == "3000 bundled public images"
    # An attack that learns from nothing has no such entry.
    assert "attacker images" not in plain.settings and plain.attacker_images is None


def test_an_attack_that_learns_is_audited(sample: Sample, public: Sample) -> None:
    torch.manual_seed(0)
    x, images = (torch.nn.functional.avg_pool2d(t, 2) for t in (sample.images[:4], public.images[:200]))
    model = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 10))
    task, pool = Task(model, example=x), (images, public.labels[:200])
    settings: dict[str, Any] = {"attack": LINEAR, "pool": pool, "metrics": ()}
    none, noisy = (
        audit(task, x, sample.labels[:4], defense=defense, **settings)
        for defense in ("none", "dp-gaussian:magnitude=10")
    )
    assert none.means["psnr"].value > noisy.means["psnr"].value + 3
    assert none.diverged == noisy.diverged == (False,) * 4
    # What is learned depends on the defence: the undefended control learns from undefended uploads.
    assert noisy.control is not None and noisy.control.psnr == none.means["psnr"].value


def test_victims_are_removed_by_content(task: Task, sample: Sample, public: Sample) -> None:
    x, y = sample.images[:3], sample.labels[:3]
    pool = (torch.cat([x[1:2], public.images[:150], x]), torch.cat([y[1:2], public.labels[:150], y]))
    plan = Plan.of(task, x, y, attack=LINEAR, pool=pool)
    assert plan.attacker_images is not None
    assert torch.equal(plan.attacker_images.images, public.images[:150])
    assert torch.equal(plan.attacker_images.labels, public.labels[:150])
    assert plan.attacker_images.source == "150 images as given"


def test_other_images_to_learn_from_are_another_audit(task: Task, sample: Sample, public: Sample) -> None:
    x, y = sample.images[:2], sample.labels[:2]
    pools = [(public.images[:n], public.labels[:n]) for n in (150, 151)]
    pools.append((public.images[:150], public.labels[:150].flip(0)))
    plans = [Plan.of(task, x, y, attack=LINEAR, pool=pool) for pool in pools]
    assert len({plan.stem for plan in plans}) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x, y: (x[:99], y[:99]),
            "public_images = 99: expected at least 100 public images besides the victims, which linear",
        ),
        (lambda x, y: (x[..., :28], y), "public images = [3, 32, 28]: expected images of shape [3, 32, 32]"),
        (lambda x, y: (x, y + 1), "public labels = 10: expected integers in [0, 9]"),
        (lambda x, y: (x, y.float()), "public labels = float32 tensor of shape [150]: expected integers"),
        (lambda x, y: (x, y[1:]), "pool = [[150, 3, 32, 32], [149]]: expected one or more images"),
        (
            lambda x, y: (x * 2, y),
            "pool = float32 tensor of shape [150, 3, 32, 32]: expected",
        ),
        (lambda x, y: (x.mul(torch.nan), y), "expected images with values in 0..1"),
        (
            lambda x, y: ((x * 255).byte(), y),
            "pool = uint8 tensor of shape [150, 3, 32, 32]: expected",
        ),
        (lambda x, y: (x[:0], y[:0]), "expected one or more images [N, *input]"),
        (lambda x, y: x, "pool = 'Tensor': expected a pair of tensors: images and labels"),
        (lambda x, y: (load_sample().images[:2],) * 2, "a label for each, [N]"),
        (
            lambda x, y: (load_sample().images[:2], load_sample().labels[:2]),
            "public_images = 2: expected images other than the victims, which all of these are",
        ),
    ],
)
def test_wrong_pools_are_one_line(
    change: Callable[[Tensor, Tensor], Any], message: str, task: Task, sample: Sample, public: Sample
) -> None:
    pool = change(public.images[:150], public.labels[:150])
    with pytest.raises(RefinerError) as caught:
        Plan.of(task, sample.images[:2], sample.labels[:2], attack=LINEAR, pool=pool)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "attack", "least"),
    [
        (1, "linear", 100),
        (16, "linear", 160),
        (1, "learned", 16),
        (16, "learned", 64),
        (40, "idlg+denoiser", 80),
        (16, "linear+denoiser:images=500", 160),
        (40, "idlg+adaptive", 40),
        (1, "idlg", 64),
        (20, "idlg", 80),
    ],
)
def test_a_plan_with_too_few_public_images_fails_before_anything_is_run(
    batch: int, attack: str, least: int, task: Task, sample: Sample, public: Sample
) -> None:
    """Where the attack itself does not learn, the estimate from robust data does."""

    def plan(images: int) -> Plan:
        pool = public.images[:images], public.labels[:images]
        return Plan.of(task, x, y, attack=attack, pool=pool, from_robust=attack == "idlg", metrics=[])

    x, y = sample.images[:batch][None], sample.labels[:batch][None]
    assert plan(least).attacker_images is not None
    with pytest.raises(
        DataError, match=f"^public_images = {least - 1}: expected at least {least} "
    ) as caught:
        plan(least - 1)
    assert (f"batches of {batch}" in str(caught.value)) == (batch > 1)


def test_images_of_the_denoiser_are_two_batches_or_more(task: Task, sample: Sample) -> None:
    x, y = sample.images[:20][None], sample.labels[:20][None]
    with pytest.raises(DataError, match=r"^denoiser\.images = 32: expected at least 40, two batches"):
        Plan.of(task, x, y, attack="idlg+denoiser:images=32", metrics=[])


@pytest.mark.parametrize(("side", "classes"), [(16, 10), (32, 5)])
def test_without_images_that_fit_there_is_one_line(side: int, classes: int) -> None:
    x = torch.rand(2, 3, side, side)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * side**2, classes))
    with pytest.raises(DataError) as caught:
        Plan.of(Task(model, example=x), x, torch.tensor([0, 1]), attack=LINEAR)
    assert str(caught.value) == ("public images: none, linear learns from labelled images like the victims'")


@pytest.mark.parametrize("capability", ["public", "defense"])
def test_a_denied_capability_stops_the_audit(capability: str, task: Task, sample: Sample) -> None:
    threat = replace(ThreatModel(), **{capability: False})
    with pytest.raises(ThreatModelError, match=f"linear needs {capability}"):
        Plan.of(task, sample.images[:2], sample.labels[:2], attack=LINEAR, threat=threat)


def test_the_attacker_never_draws_the_victims_noise(task: Task, sample: Sample) -> None:
    """Even on a victim's own image: whatever seed an attack chooses, its noise is another."""
    x, y = sample.images[:2, None], sample.labels[:2, None]
    secret = bytes(range(32))
    defense = Refiner(secret=secret, iterations=1)
    images = AttackerImages(x[:, 0], y[:, 0], "the victims")
    simulate = simulator(task, defense, images)
    assert simulate is not None
    victims_robust, _ = uploads(task, defense, x, y, labels=False, seed=7 + VICTIMS)
    by_secret = defense.protection(task, x, y).robust
    assert victims_robust is not None and by_secret is not None
    for seed in (0, 7, 7 + VICTIMS, 3):
        simulated = simulate.protect(x, y, seed)
        assert simulated.robust is not None and len(simulated.gradients) == 1
        assert simulated.gradients[0].shape == (2, task.size)
        for other in (victims_robust, by_secret):
            noises = torch.stack([(t - x).flatten(1) for t in (simulated.robust, other)])
            for image in range(2):
                assert abs(float(torch.corrcoef(noises[:, image])[0, 1])) < 0.8
    # The defence itself is the same: another call with the same seed has the same noise.
    again = simulate.protect(x, y, 0).robust
    assert again is not None and torch.equal(again, simulate.protect(x, y, 0).robust)


def test_streams_of_random_numbers_never_meet() -> None:
    """For every seed of an audit and every seed that an attack may choose."""
    last = SEED_OFFSET - 1
    assert last < VICTIMS and VICTIMS + last < TUNING and TUNING + last < SIMULATION
    # Nor in any later step or round, since their seeds differ by multiples of a step's.
    assert ROUND_SEED % STEP_SEED == 0
    victims_second_step = VICTIMS + last + STEP_SEED
    chosen = [0, last, victims_second_step - SIMULATION, 2**40 - 1, 2**40, last * 2**32 + 5, 2**64]
    seeds = [simulation_seed(seed) for seed in chosen]
    assert len(set(seeds)) == len(seeds) and all(seed % STEP_SEED >= SIMULATION for seed in seeds)


def test_a_victims_noise_from_a_secret_is_not_used_in_an_audit(task: Task, sample: Sample) -> None:
    """An audit takes all noise from its seed, so that a result can be repeated without the secret."""
    x, y = sample.images[:1], sample.labels[:1]
    secrets = (bytes(32), bytes(range(32)))
    robust = [
        uploads(task, Refiner(secret=secret, iterations=1), x[:, None], y[:, None], labels=False, seed=5)[0]
        for secret in secrets
    ]
    assert robust[0] is not None and robust[1] is not None and torch.equal(robust[0], robust[1])


def test_simulated_noise_differs_between_calls_with_different_seeds(task: Task, sample: Sample) -> None:
    images = AttackerImages(sample.images[:3], sample.labels[:3], "")
    simulate = simulator(task, make_defense("dp-gaussian:magnitude=0.1"), images)
    assert simulate is not None
    x, y = sample.images[:1, None], sample.labels[:1, None]
    uploaded = [simulate.protect(x, y, seed).gradients[0] for seed in (0, 0, 1)]
    assert torch.equal(uploaded[0], uploaded[1]) and not torch.equal(uploaded[0], uploaded[2])
    assert simulator(task, make_defense("none"), None) is None


def test_the_pool_of_the_sample_is_the_bundled_one(public: Sample) -> None:
    loaded = load_victims(victims=2, public_images=120)
    assert loaded.pool is not None and torch.equal(loaded.pool[0], public.images[:120])
    assert torch.equal(loaded.pool[1], public.labels[:120])
    assert load_victims(victims=2).pool is None


def test_the_pool_of_cifar10_has_no_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a CIFAR-10 in which every label is the position of its image."""

    def numbered(name: str, split: str, root: Path) -> ImageDataset:
        images = torch.zeros(50_000, 3, 1, 1, dtype=torch.uint8)
        return ImageDataset(images, torch.arange(50_000), 50_000, name, split)

    monkeypatch.setattr(victims, "load_data", numbered)

    def places(count: int) -> list[int]:
        loaded = load_victims("cifar10", root=Path(), victims=3, tuning_victims=2, public_images=count)
        assert loaded.pool is not None and len(loaded.pool[0]) == len(loaded.pool[1])
        # Nor a candidate among which the original is sought: those are the first 1,000.
        assert loaded.public is not None and len(loaded.public) == 1000
        labels: list[int] = loaded.pool[1].tolist()
        return labels

    assert places(20) == list(range(1000, 1020))
    assert places(50_000) == list(range(1000, 40_000))


def test_the_pool_of_a_dataset_is_its_training_images(data_dir: Callable[[str], Path]) -> None:
    loaded = load_victims("cifar100", root=data_dir("cifar100"), victims=3, public_images=50)
    assert loaded.pool is not None and loaded.pool[0].shape == (50, 3, 32, 32)
    assert not any(torch.equal(a, b) for a in loaded.x[:, 0] for b in loaded.pool[0])


def test_the_pool_of_a_dataset_without_training_images_is_behind_the_victims(
    data_dir: Callable[[str], Path],
) -> None:
    settings: dict[str, Any] = {"root": data_dir("path"), "victims": 4}
    loaded = load_victims("path", tuning_victims=3, public_images=10_000, **settings)
    longer = load_victims("path", root=data_dir("path"), victims=7)
    assert loaded.pool is not None and longer.public is not None
    assert torch.equal(loaded.pool[0], longer.public) and len(loaded.pool[1]) == len(longer.public)
    few = load_victims("path", public_images=20, **settings)
    assert few.pool is not None and torch.equal(few.pool[0], longer.public[-20:])


def test_the_pool_of_your_own_images_is_the_rest(tmp_path: Path) -> None:
    images = (np.arange(12)[:, None, None, None] * np.ones((1, 8, 8, 3))).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(12))
    loaded = load_victims(str(tmp_path / "a.npz"), victims=2, batch=2, tuning_victims=1, public_images=100)
    assert loaded.pool is not None and loaded.pool[1].tolist() == list(range(6, 12))
    few = load_victims(str(tmp_path / "a.npz"), victims=2, public_images=3)
    assert few.pool is not None and few.pool[1].tolist() == [9, 10, 11]
    assert load_victims(str(tmp_path / "a.npz"), victims=12, public_images=3).pool is None


def test_a_pool_may_stay_on_the_cpu_in_half_precision(task: Task, sample: Sample, public: Sample) -> None:
    x = sample.images[:2].double()
    pool = public.images[:120].half(), public.labels[:120].int()
    chosen = choose_attacker_images(task, x, "linear", pool=pool)
    assert chosen.images.dtype == torch.float64 and chosen.labels.dtype == torch.long


def test_simulated_clients_of_a_half_precision_model(sample: Sample) -> None:
    x = torch.nn.functional.avg_pool2d(sample.images[:4], 4)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10)).bfloat16()
    task = Task(model, example=x.bfloat16())
    simulate = simulator(task, make_defense("none"), AttackerImages(x, sample.labels[:4], ""))
    assert simulate is not None
    uploaded = simulate.protect(x[:, None], sample.labels[:4, None], 0).gradients[0]
    assert uploaded.shape == (4, 1930) and uploaded.dtype == torch.float32
