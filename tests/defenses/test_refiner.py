"""Refiner: the paper's equations, its uploads, its state, and invalid settings and data."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from refiner import (
    DataError,
    EvaluationNetwork,
    LeNet,
    NoDefense,
    ProtectionError,
    Refiner,
    SettingError,
    Task,
)
from refiner.core import NoiseSource, Update
from refiner.data import load_sample
from refiner.defenses.refine.initialization import NOISE_STEPS
from refiner.shaped_noise import NaturalNoise


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=torch.rand(2, 3, 32, 32))


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    """Four victims of one image each."""
    sample = load_sample()
    return sample.images[:4, None], sample.labels[:4, None]


@pytest.fixture(scope="module")
def refined(task: Task, images: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The robust data of a search for single images, and their uploads."""
    robust, update = refine(Refiner(search="always"), task, *images, seed=0)
    return robust, update.flat()


def refine(defense: Refiner, task: Task, x: Tensor, y: Tensor, **arguments: Any) -> tuple[Tensor, Update]:
    protection = defense.protection(task, x, y, **arguments)
    assert protection.robust is not None
    return protection.robust, protection.update


def _relative(update: Tensor, real: Tensor) -> Tensor:
    return (update - real).norm(dim=1) / real.norm(dim=1)


def test_the_papers_settings_agree_with_a_plain_autograd_loop(images: tuple[Tensor, Tensor]) -> None:
    """Equations 2 to 5 for a batch of two, written independently except for D."""
    torch.manual_seed(0)
    model = LeNet()
    x, y = images[0][:2, 0], images[1][:2, 0]
    tau, alpha, beta, iterations, epsilon = 0.95, 0.5, 1.0, 3, 0.01
    network = EvaluationNetwork.bundled()

    def gradient(data: Tensor) -> list[Tensor]:
        return list(
            torch.autograd.grad(
                nn.functional.cross_entropy(model(data), y), list(model.parameters()), create_graph=True
            )
        )

    real = [g.detach() for g in gradient(x)]
    layer = [1, 1, 2, 2, 3, 3, 4, 4]
    weights = [
        (g * p.detach()).abs() * tau**i for g, p, i in zip(real, model.parameters(), layer, strict=True)
    ]
    noise = NoiseSource(seed=7)
    robust = (1 - alpha) * x + alpha * noise.uniform(noise.identify(x, axes=1), (3, 32, 32))
    for _ in range(iterations):
        robust = robust.detach().requires_grad_()
        um = sum(
            (w * (a - b)).square().sum() for w, a, b in zip(weights, gradient(robust), real, strict=True)
        )
        (gradient_of_objective,) = torch.autograd.grad(um - beta * network(robust).mean(), robust)
        robust = robust - gradient_of_objective
    star = torch.cat([g.detach().flatten() for g in gradient(robust)])
    flat = torch.cat([g.flatten() for g in real])
    assert (star - flat).norm() > epsilon
    expected = flat + epsilon * (star - flat) / (star - flat).norm()

    defense = replace(Refiner.paper(epsilon=epsilon), iterations=iterations)
    crafted, update = refine(defense, Task(model, example=x), x, y, seed=7)
    assert torch.allclose(crafted[0], robust, atol=1e-5)
    assert torch.allclose(update.flat()[0], expected, rtol=1e-3, atol=1e-6)


def test_the_upload_depends_only_on_the_robust_data(
    task: Task, images: tuple[Tensor, Tensor], refined: tuple[Tensor, Tensor]
) -> None:
    """Otherwise an attacker who knows its form could search for the raw data too."""
    robust, update = refined
    again = NoDefense().protect(task, robust, images[1]).flat()
    assert torch.allclose(update, again, rtol=1e-4, atol=1e-6)


@pytest.mark.processes
def test_the_utility_metric_affects_the_upload(task: Task) -> None:
    sample = load_sample()
    x, y = sample.images[None, :16], sample.labels[None, :16]
    real = NoDefense().protect(task, x, y).flat()

    def distance(**settings: object) -> float:
        return float(_relative(Refiner(**settings).protect(task, x, y, seed=0).flat(), real)[0])  # type: ignore[arg-type]

    default = distance(radius=None)
    assert default < 0.5 * distance(iterations=0)
    assert abs(distance(radius=None, tau=0.5) - default) > 0.01 * default
    assert abs(distance(radius=None, element_power=1.0) - default) > 0.1 * default


def test_the_privacy_metric_affects_the_robust_data(task: Task, images: tuple[Tensor, Tensor]) -> None:
    network = EvaluationNetwork.bundled()
    letter = replace(Refiner.paper(epsilon=None), iterations=4)
    with_pm, _ = refine(letter, task, *images, seed=0)
    without, _ = refine(replace(letter, beta=0.0), task, *images, seed=0)
    assert network.score(with_pm[:, 0]).mean() > network.score(without[:, 0]).mean() + 0.02


def test_mse_can_replace_the_evaluation_network(task: Task, images: tuple[Tensor, Tensor]) -> None:
    """The paper's ablation increases the distance of pixels, without a network."""
    letter = replace(Refiner.paper(epsilon=None), iterations=4)
    by_mse, _ = refine(replace(letter, beta=300.0, privacy="mse"), task, *images, seed=0)
    without, _ = refine(replace(letter, beta=0.0), task, *images, seed=0)
    assert (by_mse - images[0]).square().mean() > 1.2 * (without - images[0]).square().mean()


def test_chunks_change_results_only_by_rounding(task: Task, images: tuple[Tensor, Tensor]) -> None:
    settings: dict[str, Any] = {"iterations": 4, "search": "always"}
    whole = Refiner(**settings).protect(task, *images, seed=0).flat()
    parts = Refiner(**settings, chunk=3).protect(task, *images, seed=0).flat()
    assert ((whole - parts).norm() / whole.norm()) < 1e-4


def test_an_image_has_the_same_noise_as_long_as_the_key_is_the_same(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    defense = Refiner(iterations=0)
    first = defense.protect(task, x, y).flat()
    assert torch.equal(defense.protect(task, x, y).flat(), first)
    order = torch.randperm(4)
    assert torch.allclose(defense.protect(task, x[order], y[order]).flat(), first[order], atol=1e-6)
    assert not torch.equal(Refiner(iterations=0).protect(task, x, y).flat(), first)
    same = [Refiner(iterations=0, secret=b"s" * 32).protect(task, x, y).flat() for _ in range(2)]
    assert torch.equal(*same)


def test_different_images_have_different_noise(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    robust, _ = refine(Refiner(iterations=0), task, torch.cat([x, 1 - x]), torch.cat([y, y]))
    noise = (
        NaturalNoise.bundled()
        .with_white(Refiner().white)
        .whiten((robust - torch.cat([x, 1 - x]))[:, 0])
        .flatten(1)
    )
    correlation = torch.corrcoef(noise) - torch.eye(8)
    assert correlation.abs().max() < 0.1


def test_a_refiner_can_not_be_pickled_or_copied() -> None:
    for leak in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            leak(Refiner())


def test_epsilon_bounds_the_absolute_or_relative_distance(task: Task, images: tuple[Tensor, Tensor]) -> None:
    real = NoDefense().protect(task, *images).flat()
    settings: dict[str, Any] = {"search": "always", "iterations": 5, "error_feedback": False, "epsilon": 0.05}
    near = Refiner(**settings).protect(task, *images).flat()
    assert torch.allclose((near - real).norm(dim=1), torch.full((4,), 0.05), rtol=1e-3)
    share = Refiner(**settings, epsilon_relative=True).protect(task, *images).flat()
    assert torch.allclose(_relative(share, real), torch.full((4,), 0.05), rtol=1e-3)


def test_a_sample_with_a_zero_gradient_is_protected() -> None:
    """A black image, or one that a model has memorised, has nothing to match."""
    torch.manual_seed(0)
    x = torch.rand(2, 3, 4, 4)
    x[0] = 0
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(48, 4, bias=False)), example=x)
    defense = Refiner(search="always", error_feedback=False)
    for rows in (slice(0, 2), slice(0, 1)):
        update = defense.protect(task, x[rows], torch.tensor([1, 2])[rows])
        assert float(update.flat().norm()) > 0


@pytest.mark.hostile
def test_an_input_range_in_which_all_images_look_alike_raises(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    """They would all get the same noise, and the difference of two uploads would not be noisy."""
    x, y = images
    with pytest.raises(DataError, match="less than one of the 256 levels of input_range"):
        Refiner(input_range=(-1e3, 1e3)).protect(task, x, y)
    Refiner(input_range=(-50.0, 50.0), search="never").protect(task, x, y)


def test_data_outside_the_input_range_raises(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    with pytest.raises(DataError, match="input_range"):
        Refiner().protect(task, 2 * x - 1, y)
    wide, _ = refine(Refiner(input_range=(-1.0, 1.0)), task, 2 * x - 1, y, seed=0)
    plain, _ = refine(Refiner(), task, x, y, seed=0)
    assert torch.allclose(wide - (2 * x - 1), 2 * (plain - x), atol=2.1 / NOISE_STEPS)


def test_images_too_small_for_the_evaluation_network_need_beta_zero() -> None:
    task = Task(LeNet(input_shape=(3, 16, 16)), example=torch.rand(2, 3, 16, 16))
    x, y = torch.rand(2, 3, 16, 16), torch.tensor([0, 1])
    with pytest.raises(DataError, match="28 to 224"):
        Refiner.paper().protect(task, x, y)
    assert Refiner.paper(beta=0.0).protect(task, x, y).samples == 2
    assert Refiner().protect(task, x, y).samples == 2


def test_a_diverging_search_raises(task: Task, images: tuple[Tensor, Tensor]) -> None:
    # Starts from the image itself, so that divergence does not depend on noise.
    wild = Refiner.paper(step=1e6, epsilon=None, alpha=0.0, relative=True, element_power=0.0, iterations=12)
    with pytest.raises(ProtectionError, match="not finite"):
        wild.protect(task, images[0][:2], images[1][:2], seed=0)


WRONG: dict[str, st.SearchStrategy[object]] = {
    "alpha": st.one_of(
        st.floats(max_value=-1e-9), st.floats(min_value=101), st.text(), st.none(), st.booleans()
    ),
    "beta": st.one_of(st.floats(max_value=-1e-9), st.just(float("nan")), st.text()),
    "iterations": st.one_of(st.integers(max_value=-1), st.floats(), st.text(), st.booleans()),
    "tau": st.one_of(st.floats(min_value=1.01), st.floats(max_value=-0.01), st.none()),
    "epsilon": st.one_of(st.floats(max_value=0), st.just(float("inf")), st.text()),
    "solver": st.text(),
    "start": st.integers(),
    "step": st.one_of(st.floats(max_value=0), st.none()),
    "relative": st.integers(),
    "search": st.text(),
    "min_search_batch": st.integers(max_value=0),
    "radius": st.one_of(st.floats(max_value=0), st.text()),
    "search_budget": st.one_of(st.integers(max_value=-1), st.floats(), st.booleans()),
    "error_feedback": st.none(),
    "warm_start": st.none(),
    "memory_size": st.integers(max_value=0),
    "white": st.one_of(st.floats(max_value=-1e-9), st.text()),
    "statistics": st.integers(),
    "clamp": st.integers(),
    "epsilon_relative": st.none(),
    "chunk": st.one_of(st.integers(max_value=0), st.floats()),
    "input_range": st.one_of(st.just((1.0, 0.0)), st.just((0.0,)), st.floats(), st.just((0.0, float("nan")))),
    "network": st.text(),
    "secret": st.binary(max_size=31),
    "element_power": st.floats(max_value=-1e-9),
}


@given(data=st.data(), field=st.sampled_from(sorted(WRONG)))
def test_an_invalid_setting_raises_a_one_line_error_that_names_it(data: st.DataObject, field: str) -> None:
    value = data.draw(WRONG[field])
    with pytest.raises(SettingError) as raised:
        Refiner(**{field: value})  # type: ignore[arg-type]
    assert str(raised.value).startswith(field)
    assert "\n" not in str(raised.value)
    assert "expected" in str(raised.value)


def test_a_failed_round_does_not_affect_later_ones(task: Task, images: tuple[Tensor, Tensor]) -> None:
    """A server that sends one broken model must not spoil later rounds."""
    task = Task(copy.deepcopy(task.model), example=images[0][0])
    defense = Refiner(iterations=2)
    defense.protect(task, *images)
    weight = task.model.get_parameter(task.names[0])
    before = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.inf)
    with pytest.raises(ProtectionError):
        defense.protect(task, *images)
    with torch.no_grad():
        weight.copy_(before)
    defense.protect(task, *images)


def test_a_refiner_has_no_mutable_state_and_shows_no_secret(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    defense = Refiner(iterations=0, secret=bytes(range(32)))
    before = dict(vars(defense))
    defense.protect(task, *images)
    after = vars(defense)
    assert all(after[name] is value for name, value in before.items())
    with pytest.raises(FrozenInstanceError):
        defense.alpha = 1.0  # type: ignore[misc]
    assert "secret" not in repr(defense) and "secret" not in defense.settings()
    assert defense._public_settings.secret is None


def test_a_seeded_key_is_reproducible_and_differs_between_seeds(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    uploads = [
        Refiner(iterations=0).with_seeded_key(seed).protect(task, *images).flat() for seed in (1, 1, 2)
    ]
    assert torch.equal(uploads[0], uploads[1]) and not torch.equal(uploads[0], uploads[2])
    assert NoDefense().with_seeded_key(1) == NoDefense()


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("epsilon", {"epsilon": 0.1, "error_feedback": False}),
        ("epsilon", {"epsilon": 0.1, "error_feedback": False, "search": "never"}),
        ("error_feedback", {"epsilon": 0.1, "search": "always"}),
        ("warm_start", {"warm_start": True, "error_feedback": False}),
        ("warm_start", {"warm_start": True, "start": "centred", "search": "always"}),
        ("warm_start", {"warm_start": True, "start": "centred", "error_feedback": False}),
        ("beta", {"beta": 1.0}),
        ("statistics", {"statistics": "noise.safetensors", "start": "blend", "alpha": 0.5}),
        ("white", {"white": 0.3, "start": "centred"}),
        ("radius", {"radius": 0.5, "start": "centred"}),
        ("radius", {"radius": None, "search": "never"}),
        ("iterations", {"iterations": 8, "search": "never"}),
        ("min_search_batch", {"min_search_batch": 4, "search": "never"}),
        ("solver", {"solver": "descent", "search": "never"}),
        ("tau", {"tau": 0.5, "search": "never"}),
    ],
)
def test_settings_that_contradict_each_other_raise(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="possible only with") as raised:
        Refiner(**settings)
    assert raised.value.field == field and "\n" not in str(raised.value)


def test_without_a_search_light_is_the_default() -> None:
    light, default = (make(search="never", alpha=2.0) for make in (Refiner.light, Refiner))
    assert light.settings() == default.settings()


def test_networks_lists_what_the_uploads_depend_on(task: Task) -> None:
    network = EvaluationNetwork()
    assert list(Refiner().networks(task)) == ["noise statistics"]
    assert Refiner.paper(network=network).networks(task) == {"evaluation": network}
    assert Refiner.paper().networks(task)["evaluation"] is EvaluationNetwork.bundled()


def test_a_missing_statistics_file_is_one_line() -> None:
    with pytest.raises(DataError, match=r"^statistics = '.*': not noise statistics"):
        Refiner(statistics="nowhere.safetensors")


def test_settings_of_an_update_name_the_defence_but_no_secret(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    names = """alpha beta privacy iterations tau epsilon epsilon_relative start white search
    min_search_batch radius search_budget error_feedback solver step element_power relative warm_start clamp
    input_range"""
    assert sorted(Refiner().protect(task, *images).settings) == sorted(names.split())
