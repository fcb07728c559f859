"""The linear attack: it exposes undefended images, and little behind noise; seeds, batches, failures."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from refiner.attacks import LinearReconstruction, Observation, SimulatedUploads, Simulator, ThreatModel
from refiner.core import Task
from refiner.data import Sample, load_public_sample, load_sample
from refiner.defenses import Defense, NoDefense, make_defense
from refiner.errors import SettingError
from refiner.metrics import assign, identify, psnr
from refiner.models import LeNet

LINEAR = LinearReconstruction()


@pytest.fixture(scope="module")
def public() -> Sample:
    return load_public_sample()


@pytest.fixture(scope="module")
def lenet() -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=load_sample().images[:1])


def simulator(task: Task, defense: Defense, public: Sample, count: int) -> Simulator:
    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        update = defense.protect(task, x, y, seed=1000 + seed)
        return SimulatedUploads([Observation.of(task, update).gradient], None)

    return Simulator(public.images[:count], public.labels[:count], protect)


def observe(task: Task, defense: Defense, x: Tensor, y: Tensor) -> Observation:
    return Observation.of(task, defense.protect(task, x, y, seed=5))


def test_undefended_images_of_lenet_are_exposed(lenet: Task, public: Sample) -> None:
    sample = load_sample()
    x, y = sample.images[:20, None], sample.labels[:20, None]
    none = NoDefense()
    progress: list[tuple[int, int]] = []
    result = LINEAR.reconstruct(
        observe(lenet, none, x, y),
        simulator=simulator(lenet, none, public, 800),
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert not bool(result.diverged.any()) and torch.equal(result.labels, y)
    assert float(result.x.min()) >= 0 and float(result.x.max()) <= 1
    assert float(psnr(result.x[:, 0], x[:, 0]).mean()) > 19
    assert bool((identify(result.x[:, 0], x[:, 0], others=sample.images[20:]).ranks == 1).all())
    # The error on held-out public images is about that on the victims.
    assert float(result.objective[0]) == pytest.approx(float((result.x - x).square().mean()), rel=0.5)
    assert progress == sorted(progress) and progress[-1] == (800, 800)


@pytest.fixture(scope="module")
def linear_model() -> tuple[Task, Tensor, Tensor]:
    """A model whose layer inputs are sums of pixels, so that NumPy can repeat the whole attack."""
    torch.manual_seed(0)
    pool, flat = nn.AvgPool2d(8), nn.Flatten()
    task = Task(nn.Sequential(pool, flat, nn.Linear(48, 10)), example=torch.rand(1, 3, 32, 32))
    sample = load_sample()
    return task, sample.images[:6, None], sample.labels[:6, None]


def test_it_is_the_best_linear_estimate(linear_model: tuple[Task, Tensor, Tensor], public: Sample) -> None:
    """Features that are averages of 8×8 pixels: NumPy's least squares from averages to images agrees."""
    task, x, y = linear_model
    none = NoDefense()
    result = LINEAR.reconstruct(observe(task, none, x, y), simulator=simulator(task, none, public, 1000))
    pooled = nn.functional.avg_pool2d(public.images[:1000], 8).flatten(1).numpy()
    rows = np.concatenate([pooled, np.ones((1000, 1))], axis=1)
    coefficients, *_ = np.linalg.lstsq(rows, public.images[:1000].flatten(1).numpy(), rcond=None)
    victims = nn.functional.avg_pool2d(x[:, 0], 8).flatten(1).numpy()
    expected = np.concatenate([victims, np.ones((6, 1))], axis=1) @ coefficients
    error = np.square(result.x.flatten(1).numpy() - expected.clip(0, 1)).mean()
    # One tenth of the images choose the penalty: the fits differ by that much data.
    assert error < 0.1 * float((result.x - x).square().mean())


def test_noise_that_hides_images_leaves_the_mean_image(
    linear_model: tuple[Task, Tensor, Tensor], public: Sample
) -> None:
    task, x, y = linear_model
    noise = make_defense("dp-gaussian:magnitude=10")
    result = LINEAR.reconstruct(observe(task, noise, x, y), simulator=simulator(task, noise, public, 600))
    mean_image = public.images[:600].mean(0)
    assert not bool(result.diverged.any())
    assert float((result.x - mean_image).square().mean()) < 0.1 * float((result.x - x).square().mean())


def test_results_depend_on_the_seed_only(linear_model: tuple[Task, Tensor, Tensor], public: Sample) -> None:
    task, x, y = linear_model
    noise = make_defense("dp-gaussian:magnitude=0.01")
    observation, simulate = observe(task, noise, x, y), simulator(task, noise, public, 200)
    state = torch.random.get_rng_state()
    first, again, other = (
        LINEAR.reconstruct(observation, simulator=simulate, seed=seed).x for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_simulated_clients_never_share_a_seed(
    linear_model: tuple[Task, Tensor, Tensor], public: Sample
) -> None:
    """A defence may draw noise by a client's place in a call: a seed used twice would repeat it."""
    task, x, y = linear_model
    simulate, seeds = simulator(task, NoDefense(), public, 600), []

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        seeds.append(seed)
        return simulate.protect(x, y, seed)

    for run_seed in (0, 1):
        LinearReconstruction(passes=2).reconstruct(
            observe(task, NoDefense(), x, y), simulator=replace(simulate, protect=protect), seed=run_seed
        )
    assert len(seeds) == len(set(seeds)) > 8


def test_images_of_a_batch_are_separated_by_their_labels(lenet: Task, public: Sample) -> None:
    sample = load_sample()
    x, y = sample.images[:20].view(5, 4, 3, 32, 32), sample.labels[:20].view(5, 4)
    none = NoDefense()
    result = LINEAR.reconstruct(observe(lenet, none, x, y), simulator=simulator(lenet, none, public, 800))
    assert torch.equal(result.labels, y.sort().values)
    # Every label of a batch is another, so that each image is revealed as if it were alone.
    images = assign(result.x, x).flatten(0, 1)
    assert float(psnr(images, x.flatten(0, 1)).mean()) > 19
    assert bool((identify(images, x.flatten(0, 1), others=sample.images[20:]).ranks == 1).all())


def test_several_uploads_are_read_together(linear_model: tuple[Task, Tensor, Tensor], public: Sample) -> None:
    """Four uploads with their own noise: their features are concatenated, and the noise averages out."""
    task, x, y = linear_model
    noise = make_defense("dp-gaussian:magnitude=0.05")

    def run(count: int) -> float:
        def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
            updates = [noise.protect(task, x, y, seed=10_000 + 50 * seed + k) for k in range(count)]
            return SimulatedUploads([Observation.of(task, update).gradient for update in updates], None)

        observed = [Observation.of(task, noise.protect(task, x, y, seed=k)) for k in range(count)]
        simulate = Simulator(public.images[:600], public.labels[:600], protect)
        return float((LINEAR.reconstruct(observed, simulator=simulate).x - x).square().mean())

    assert run(4) < 0.9 * run(1)


def zeros(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
    return SimulatedUploads([torch.zeros(len(x), 490)], None)


def huge(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
    return SimulatedUploads([torch.full((len(x), 490), 3e38)], None)


@pytest.mark.parametrize("protect", [zeros, huge])
def test_a_fit_that_learns_nothing_says_so(
    protect: Callable[[Tensor, Tensor, int], SimulatedUploads],
    linear_model: tuple[Task, Tensor, Tensor],
    public: Sample,
) -> None:
    task, x, y = linear_model
    simulate = Simulator(public.images[:100], public.labels[:100], protect)
    result = LINEAR.reconstruct(observe(task, NoDefense(), x, y), simulator=simulate)
    assert bool(result.diverged.all()) and bool(result.x.isfinite().all())
    assert not bool(result.objective.isnan().any())


def test_a_victim_whose_features_overflow_does_not_affect_the_others(
    linear_model: tuple[Task, Tensor, Tensor], public: Sample
) -> None:
    task, x, y = linear_model
    observation, simulate = observe(task, NoDefense(), x, y), simulator(task, NoDefense(), public, 200)
    gradient = observation.gradient.clone()
    gradient[1] = 3e38
    expected = LINEAR.reconstruct(observation, simulator=simulate)
    result = LINEAR.reconstruct(replace(observation, gradient=gradient), simulator=simulate)
    assert result.diverged.tolist() == [False, True, False, False, False, False]
    assert bool(result.x.isfinite().all())
    assert torch.equal(result.x[2:], expected.x[2:])


def test_granted_labels_are_the_labels_of_the_result(
    linear_model: tuple[Task, Tensor, Tensor], public: Sample
) -> None:
    task, x, y = linear_model
    observation = replace(observe(task, NoDefense(), x, y), labels=y)
    simulate = simulator(task, NoDefense(), public, 100)
    result = LINEAR.reconstruct(observation, simulator=simulate, threat=ThreatModel(labels=True))
    assert torch.equal(result.labels, y)


@pytest.mark.parametrize("settings", [{"passes": 0}, {"features": 0}, {"features": 4097}, {"passes": 1.5}])
def test_settings_out_of_range_raise(settings: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=f"{next(iter(settings))} = "):
        LinearReconstruction(**settings)
