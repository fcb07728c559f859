"""The linear attack: it exposes undefended images, and little behind noise; seeds, batches, failures."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from refiner.attacks import LinearReconstruction, Observation, SimulatedUploads, Simulator, ThreatModel
from refiner.core import Task, flatten, gradients
from refiner.data import Sample, load_public_sample, load_sample
from refiner.defenses import Defense, NoDefense
from refiner.errors import SettingError
from refiner.metrics import assign, identify, psnr
from refiner.models import LeNet

LINEAR = LinearReconstruction()


@pytest.fixture(scope="module")
def public() -> Sample:
    return load_public_sample()


@pytest.fixture(scope="module")
def tiny(public: Sample) -> Sample:
    """The public images in 8×8, to save time."""
    return replace(public, images=nn.functional.avg_pool2d(public.images, 4))


def simulator(task: Task, defense: Defense, public: Sample, count: int) -> Simulator:
    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        update = defense.protect(task, x, y, seed=1000 + seed)
        return SimulatedUploads([Observation.of(task, update).gradient], None)

    return Simulator(public.images[:count], public.labels[:count], protect)


def noisy_gradients(task: Task, x: Tensor, y: Tensor, size: float, seed: int) -> Tensor:
    gradient = flatten(gradients(task, x, y))
    return gradient + size * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(seed))


def observe(task: Task, defense: Defense, x: Tensor, y: Tensor) -> Observation:
    return Observation.of(task, defense.protect(task, x, y, seed=5))


@pytest.mark.processes
def test_undefended_images_of_lenet_are_exposed(public: Sample) -> None:
    sample = load_sample()
    torch.manual_seed(0)
    lenet = Task(LeNet(), example=sample.images[:1])
    x, y = sample.images[:20, None], sample.labels[:20, None]
    none = NoDefense()
    progress: list[tuple[int, int]] = []
    result = LINEAR.reconstruct(
        observe(lenet, none, x, y),
        simulator=simulator(lenet, none, public, 600),
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert not bool(result.diverged.any()) and torch.equal(result.labels, y)
    assert float(result.x.min()) >= 0 and float(result.x.max()) <= 1
    assert float(psnr(result.x[:, 0], x[:, 0]).mean()) > 18
    assert bool((identify(result.x[:, 0], x[:, 0], others=sample.images[20:]).ranks == 1).all())
    # The error on held-out public images is about that on the victims.
    assert float(result.objective[0]) == pytest.approx(float((result.x - x).square().mean()), rel=0.5)
    assert progress == sorted(progress) and progress[-1] == (600, 600)


@pytest.fixture(scope="module")
def linear_model() -> tuple[Task, Tensor, Tensor]:
    """A model whose layer inputs are means of 2×2 pixels, so that NumPy can repeat the whole attack."""
    torch.manual_seed(0)
    sample = load_sample()
    x = nn.functional.avg_pool2d(sample.images[:6], 4)
    task = Task(nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 10)), example=x)
    return task, x[:, None], sample.labels[:6, None]


def test_images_of_a_batch_are_separated_by_their_labels(public: Sample) -> None:
    sample = load_sample()
    images = nn.functional.avg_pool2d(torch.cat([sample.images, public.images[:600]]), 2)
    x, y = images[:20].view(5, 4, 3, 16, 16), sample.labels[:20].view(5, 4)
    torch.manual_seed(0)
    task, none = Task(LeNet(input_shape=(3, 16, 16)), example=x[0]), NoDefense()
    learned_from = replace(public, images=images[200:])
    result = LINEAR.reconstruct(observe(task, none, x, y), simulator=simulator(task, none, learned_from, 600))
    assert torch.equal(result.labels, y.sort().values)
    # Every label of a batch is another, so that each image is revealed as if it were alone.
    found = assign(result.x, x).flatten(0, 1)
    assert float(psnr(found, x.flatten(0, 1)).mean()) > 18
    assert bool((identify(found, x.flatten(0, 1), others=images[20:200]).ranks == 1).all())


def test_it_is_the_best_linear_estimate(linear_model: tuple[Task, Tensor, Tensor], tiny: Sample) -> None:
    """NumPy's least squares from means of pixels to images agrees."""
    task, x, y = linear_model
    none = NoDefense()
    result = LINEAR.reconstruct(observe(task, none, x, y), simulator=simulator(task, none, tiny, 1000))
    pooled = nn.functional.avg_pool2d(tiny.images[:1000], 2).flatten(1).numpy()
    rows = np.concatenate([pooled, np.ones((1000, 1))], axis=1)
    coefficients, *_ = np.linalg.lstsq(rows, tiny.images[:1000].flatten(1).numpy(), rcond=None)
    victims = nn.functional.avg_pool2d(x[:, 0], 2).flatten(1).numpy()
    expected = np.concatenate([victims, np.ones((6, 1))], axis=1) @ coefficients
    error = np.square(result.x.flatten(1).numpy() - expected.clip(0, 1)).mean()
    # One tenth of the images choose the penalty: the fits differ by that much data.
    assert error < 0.1 * float((result.x - x).square().mean())


def test_noise_that_hides_images_leaves_the_mean_image(
    linear_model: tuple[Task, Tensor, Tensor], tiny: Sample
) -> None:
    task, x, y = linear_model

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        return SimulatedUploads([noisy_gradients(task, x, y, 10.0, seed + 1)], None)

    observation = replace(observe(task, NoDefense(), x, y), gradient=noisy_gradients(task, x, y, 10.0, 0))
    simulate = Simulator(tiny.images[:600], tiny.labels[:600], protect)
    result = LINEAR.reconstruct(observation, simulator=simulate)
    mean_image = tiny.images[:600].mean(0)
    assert not bool(result.diverged.any())
    assert float((result.x - mean_image).square().mean()) < 0.1 * float((result.x - x).square().mean())


def test_results_depend_on_the_seed_only(linear_model: tuple[Task, Tensor, Tensor], tiny: Sample) -> None:
    task, x, y = linear_model
    observation, simulate = observe(task, NoDefense(), x, y), simulator(task, NoDefense(), tiny, 200)
    state = torch.random.get_rng_state()
    first, again, other = (
        LINEAR.reconstruct(observation, simulator=simulate, seed=seed).x for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_simulated_clients_never_share_a_seed(
    linear_model: tuple[Task, Tensor, Tensor], tiny: Sample
) -> None:
    """A defence may draw noise by a client's place in a call: a seed used twice would repeat it."""
    task, x, y = linear_model
    simulate, seeds = simulator(task, NoDefense(), tiny, 300), []

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        seeds.append(seed)
        return simulate.protect(x, y, seed)

    for run_seed in (0, 1):
        LinearReconstruction(passes=2).reconstruct(
            observe(task, NoDefense(), x, y), simulator=replace(simulate, protect=protect), seed=run_seed
        )
    assert len(seeds) == len(set(seeds)) > 8


def test_several_uploads_are_read_together(linear_model: tuple[Task, Tensor, Tensor], tiny: Sample) -> None:
    """Four uploads with their own noise: their features are concatenated, and the noise averages out."""
    task, x, y = linear_model
    observation = observe(task, NoDefense(), x, y)

    def run(count: int) -> float:
        def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
            return SimulatedUploads(
                [noisy_gradients(task, x, y, 0.1, 100 + 50 * seed + k) for k in range(count)], None
            )

        observed = [replace(observation, gradient=noisy_gradients(task, x, y, 0.1, k)) for k in range(count)]
        simulate = Simulator(tiny.images[:600], tiny.labels[:600], protect)
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
    tiny: Sample,
) -> None:
    task, x, y = linear_model
    simulate = Simulator(tiny.images[:100], tiny.labels[:100], protect)
    result = LINEAR.reconstruct(observe(task, NoDefense(), x, y), simulator=simulate)
    assert bool(result.diverged.all()) and bool(result.x.isfinite().all())
    assert not bool(result.objective.isnan().any())


def test_a_victim_whose_features_overflow_does_not_affect_the_others(
    linear_model: tuple[Task, Tensor, Tensor], tiny: Sample
) -> None:
    task, x, y = linear_model
    observation, simulate = observe(task, NoDefense(), x, y), simulator(task, NoDefense(), tiny, 200)
    gradient = observation.gradient.clone()
    gradient[1] = 3e38
    expected = LINEAR.reconstruct(observation, simulator=simulate)
    result = LINEAR.reconstruct(replace(observation, gradient=gradient), simulator=simulate)
    assert result.diverged.tolist() == [False, True, False, False, False, False]
    assert bool(result.x.isfinite().all())
    assert torch.equal(result.x[2:], expected.x[2:])


def test_granted_labels_are_the_labels_of_the_result(
    linear_model: tuple[Task, Tensor, Tensor], tiny: Sample
) -> None:
    task, x, y = linear_model
    observation = replace(observe(task, NoDefense(), x, y), labels=y)
    simulate = simulator(task, NoDefense(), tiny, 100)
    result = LINEAR.reconstruct(observation, simulator=simulate, threat=ThreatModel(labels=True))
    assert torch.equal(result.labels, y)


@pytest.mark.parametrize("settings", [{"passes": 0}, {"features": 0}, {"features": 4097}, {"passes": 1.5}])
def test_settings_out_of_range_raise(settings: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=f"{next(iter(settings))} = "):
        LinearReconstruction(**settings)
