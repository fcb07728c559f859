"""Every gradient-matching attack: recovery, threat model, determinism, chunks, resuming, divergence."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.attacks.conftest import ALL, QUICK, TESTED_ALONE
from torch import Tensor

from refiner.attacks import (
    ATTACKS,
    GGL,
    Attack,
    GradInversion,
    InvertingGradients,
    Observation,
    ThreatModel,
    make_attack,
)
from refiner.attacks.matching import checkpoint, gradient_matching
from refiner.attacks.matching.descent import AdamDescent, DescentState
from refiner.attacks.matching.gradient_matching import GradientMatching
from refiner.core import Task
from refiner.core.optim import Adam
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.errors import DataError, SettingError, ThreatModelError
from refiner.models import LeNet
from refiner.registry import dataclass_of

EACH = pytest.mark.parametrize("name", QUICK)


def short(name: str, iterations: int = 4) -> Attack:
    # An iteration of DLG and iDLG is twenty steps; with more of them L-BFGS amplifies rounding errors.
    count = 1 if name in ("dlg", "idlg") else iterations
    return replace(QUICK[name], iterations=count)  # type: ignore[type-var]


def test_every_attack_has_quick_settings_and_a_reference() -> None:
    attacks = {**QUICK, **{name: make_attack(name) for name in TESTED_ALONE}}
    classes = {dataclass_of(factory) for factory in ATTACKS.values()}
    assert {type(attack) for attack in attacks.values()} == classes
    # Of a chain the last link: "inverting+denoiser".
    assert all(attack.name.split("+")[-1] == name for name, attack in attacks.items())
    assert all(re.search(r"\b20\d\d$", attack.reference) for attack in attacks.values())


@pytest.mark.parametrize(
    ("text", "attack"),
    [
        ("inverting-paper", InvertingGradients.paper()),
        ("inverting-paper:iterations=3,lr=0.5", InvertingGradients.paper(iterations=3, lr=0.5)),
        ("gradinversion-paper", GradInversion.paper()),
        ("ggl-paper", GGL.paper()),
    ],
)
def test_names_that_end_in_paper_have_the_papers_settings(text: str, attack: Attack) -> None:
    by_name, name = make_attack(text), text.partition("-")[0]
    assert type(by_name) is type(attack) and by_name.settings() == attack.settings()
    assert by_name.settings() != make_attack(name).settings()
    assert by_name.name == name


@EACH
def test_undefended_images_are_recovered(
    name: str, small_observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    x, y = victims
    # GGL recovers only images that its generator can make.
    rows = slice(2, 3) if name == "ggl" else slice(None)
    result = QUICK[name].reconstruct(small_observation, threat=ALL)
    assert torch.equal(result.labels, y)
    assert not bool(result.diverged.any())
    error = (result.x - x).square().flatten(1).mean(1)[rows]
    mean_colour_error = (x - x.mean((-2, -1), keepdim=True)).square().flatten(1).mean(1)[rows]
    assert bool((error < 0.15 * mean_colour_error).all()), (error, mean_colour_error)
    assert result.x.shape == x.shape and float(result.x.min()) >= 0 and float(result.x.max()) <= 1


@EACH
def test_missing_and_superfluous_capabilities_raise(
    name: str, observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    for need in QUICK[name].needs:
        with pytest.raises(ThreatModelError, match=f"{name} needs {need}"):
            short(name).reconstruct(observation, threat=replace(ALL, **{need: False}))
    with pytest.raises(ThreatModelError, match="labels"):
        short(name).reconstruct(replace(observation, labels=victims[1]), threat=ALL)
    with pytest.raises(DataError, match="contains none"):
        short(name).reconstruct(observation, threat=replace(ALL, labels=True))


@pytest.mark.usefixtures("few_lbfgs_steps")
@EACH
def test_results_depend_on_the_seed_and_not_on_the_chunk(name: str, small_observation: Observation) -> None:
    first, repeated, other_chunk, other_seed = (
        short(name).reconstruct(small_observation, threat=ALL, seed=seed, chunk=chunk).x
        for seed, chunk in ((1, 3), (1, 3), (1, 2), (2, 3))
    )
    assert torch.equal(first, repeated)
    torch.testing.assert_close(first, other_chunk, rtol=1e-3, atol=1e-3)
    assert not torch.equal(first, other_seed)


@pytest.mark.usefixtures("few_lbfgs_steps")
@EACH
def test_an_interrupted_attack_resumes_with_the_same_result(
    name: str, small_observation: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_matching, "_ITERATIONS_PER_BLOCK", 2)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_SAVES", 0.0)
    attack, state = short(name), tmp_path / "state.safetensors"
    uninterrupted = attack.reconstruct(small_observation, threat=ALL, chunk=2)
    total = 3 * attack.matching().iterations * attack.matching().restarts  # type: ignore[attr-defined]
    calls: list[int] = []

    def interrupt(done: int, reported_total: int) -> None:
        assert reported_total == total
        calls.append(done)
        # Once in the first chunk, once in the second.
        if len(calls) in (1, 4):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            attack.reconstruct(small_observation, threat=ALL, chunk=2, resume=state, on_progress=interrupt)
    resumed = attack.reconstruct(small_observation, threat=ALL, chunk=2, resume=state, on_progress=interrupt)
    assert torch.equal(resumed.x, uninterrupted.x)
    assert torch.equal(resumed.objective, uninterrupted.objective)
    assert sorted(calls) == calls
    content = state.read_bytes()
    with pytest.raises(DataError, match="differs in seed; nothing was overwritten"):
        attack.reconstruct(small_observation, threat=ALL, chunk=2, seed=5, resume=state)
    assert state.read_bytes() == content


@pytest.mark.usefixtures("few_lbfgs_steps")
@EACH
def test_a_diverging_victim_does_not_affect_the_others(name: str, small_observation: Observation) -> None:
    # Finite values whose squares overflow: the distance is infinite.
    gradient = small_observation.gradient.clone()
    gradient[1] = 3e38
    attack = short(name, 6)
    diverged = attack.reconstruct(
        replace(small_observation, gradient=gradient), threat=replace(ALL, labels=False)
    )
    assert diverged.diverged.tolist() == [False, True, False]
    assert bool(diverged.x.isfinite().all())
    expected = attack.reconstruct(small_observation, threat=ALL)
    torch.testing.assert_close(diverged.x[[0, 2]], expected.x[[0, 2]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("at", [1, 7])
def test_a_guess_that_diverges_later_keeps_its_last_point(at: int) -> None:
    calls = 0

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        value = z.square().flatten(1).sum(1)
        # NaN once, for the second guess only.
        value[1] += torch.nan if calls == at else 0
        return value, 2 * z

    descent = AdamDescent(Adam(lr=0.1), (), 20, lambda z: z)
    state = descent.init(torch.ones(2, 3), evaluate)
    diverged = descent.advance(state, evaluate, 0, at)
    end = descent.advance(diverged, evaluate, at, 20)
    assert end.diverged.tolist() == [False, True]
    assert torch.equal(end.z[1], diverged.z[1])
    assert bool((end.z[0].abs() < diverged.z[0].abs()).all())
    # The best point is from before the divergence.
    best_value = float(end.best_z[1].square().sum()) if at > 1 else torch.inf
    assert float(end.best_value[1]) == pytest.approx(best_value)


def test_the_restart_with_the_lowest_objective_is_chosen(small_observation: Observation) -> None:
    """Two victims with three guesses each: the best are the second and the third."""
    values = torch.tensor([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    z, diverged = torch.arange(6.0)[:, None], torch.tensor([False, False, True, False, False, True])
    state = DescentState(z, z, values, diverged, ())
    best_z, value, diverged = GradientMatching(restarts=3)._best_restart(state)
    assert best_z.flatten().tolist() == [1, 5] and value.tolist() == [1, 4]
    assert diverged.tolist() == [False, True]
    attack = replace(QUICK["inverting"], iterations=2, restarts=3)  # type: ignore[type-var]
    assert attack.reconstruct(small_observation).x.shape[0] == 3


@pytest.mark.processes
def test_several_noisy_uploads_reveal_more_than_one(
    small_observation: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    draws = torch.Generator().manual_seed(0)
    noise = [torch.randn(small_observation.gradient.shape, generator=draws) for _ in range(4)]
    noisy = [
        replace(
            small_observation,
            gradient=small_observation.gradient + 0.5 * small_observation.gradient.std() * n,
        )
        for n in noise
    ]
    single, joint = (short("inverting", 20).reconstruct(o).x for o in (noisy[0], noisy))
    errors = [(x - victims[0]).square().mean() for x in (single, joint)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("inverting", "iterations", 0),
        ("inverting", "lr", -1),
        ("inverting", "total_variation", -1e-3),
        ("inverting", "restarts", 0),
        ("inverting", "input_range", (1.0, 0.0)),
        ("idlg", "history", 0),
        ("idlg", "iterations", "a"),
        ("dlg", "iterations", 0.5),
        ("gradinversion", "restarts", "a"),
        ("gradinversion", "consistency", -1),
        ("gradinversion", "squared_length", "a"),
        ("ggl", "divergence", -1),
    ],
)
def test_settings_out_of_range_raise(name: str, field: str, value: object) -> None:
    with pytest.raises(SettingError):
        make_attack(name, **{field: value})


def test_an_unknown_attack_raises_with_a_suggestion() -> None:
    with pytest.raises(DataError, match="did you mean 'gradinversion'"):
        make_attack("grad-inversion")


def test_a_generator_of_another_image_size_raises(task: object, observation: Observation) -> None:
    class Wrong:
        latent = 3

        def __call__(self, z: Tensor, y: Tensor) -> Tensor:
            return z.new_zeros(len(z), 3, 4, 4)

    attack = replace(QUICK["ggl"], generator=Wrong())  # type: ignore[type-var]
    with pytest.raises(DataError, match=r"makes images \[3, 4, 4\], the task takes \[3, 8, 8\]"):
        attack.reconstruct(observation, threat=ThreatModel(generator=True))


def test_deterministic_must_be_a_bool(observation: Observation) -> None:
    with pytest.raises(SettingError, match="deterministic = 1: expected True or False"):
        short("inverting").reconstruct(observation, deterministic=1)  # type: ignore[arg-type]


def test_an_interrupt_between_two_saves_stores_a_consistent_state(
    small_observation: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BFGS overwrites its history in place; the state stored on Ctrl-C must not mix two iterations."""
    # With a short history every step overwrites what the state before it needs.
    attack, state = replace(short("idlg"), history=3), tmp_path / "state.safetensors"  # type: ignore[type-var]
    monkeypatch.setattr(gradient_matching, "_ITERATIONS_PER_BLOCK", 5)
    uninterrupted = attack.reconstruct(small_observation)
    evaluations = 0
    evaluate = gradient_matching._Objective.__call__

    def interrupt(self: gradient_matching._Objective, z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal evaluations
        evaluations += 1
        if evaluations == 15:
            raise KeyboardInterrupt
        return evaluate(self, z)

    monkeypatch.setattr(gradient_matching._Objective, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        attack.reconstruct(small_observation, resume=state)
    assert torch.equal(attack.reconstruct(small_observation, resume=state).x, uninterrupted.x)


def test_half_precision_models_are_attacked_in_float32(
    victims: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x, y = victims[0].bfloat16(), victims[1]
    task = Task(LeNet(input_shape=tuple(x.shape[2:])).bfloat16(), example=x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    result = short("inverting").reconstruct(observation, resume=tmp_path / "state.safetensors")
    assert result.x.dtype == torch.float32 and not bool(result.diverged.any())


def test_inputs_without_height_and_width_are_attacked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Sigmoid(), torch.nn.Linear(30, 10))
    x, y = torch.rand(2, 1, 20), torch.tensor([[1], [2]])
    task = Task(model, example=x[0])
    result = short("inverting").reconstruct(Observation.of(task, NoDefense().protect(task, x, y)))
    assert not bool(result.diverged.any()) and bool(result.objective.isfinite().all())


@pytest.mark.parametrize(
    "text",
    [
        "inverting:signed=no",
        "ggl:decayed=off",
        "inverting:input_range=(0,)",
        "inverting:input_range=5",
        "inverting:lr={[]:1}",
    ],
)
def test_wrong_settings_as_text_raise(text: str) -> None:
    with pytest.raises(SettingError):
        make_attack(text)


def test_a_missing_generator_file_raises(observation: Observation, tmp_path: Path) -> None:
    attack = make_attack(f"ggl:iterations=1,generator={tmp_path / 'g.safetensors'}")
    with pytest.raises(DataError, match=r"g\.safetensors.*not a generator"):
        attack.check(observation.task)


def test_the_generator_works_with_a_half_precision_model() -> None:
    sample = load_sample()
    x, y = sample.images[:1, None].bfloat16(), sample.labels[:1, None]
    torch.manual_seed(0)
    task = Task(LeNet().bfloat16(), example=x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    result = GGL(iterations=1).reconstruct(observation, threat=ThreatModel(generator=True))
    assert result.x.shape == x.shape and bool(result.x.isfinite().all())


def test_a_generator_with_fewer_classes_raises() -> None:
    task = Task(LeNet(classes=12), example=torch.rand(1, 3, 32, 32))
    with pytest.raises(DataError, match=r"^generator: has 10 classes, the task has 12$"):
        GGL().check(task)


@pytest.mark.processes
def test_the_bundled_generator_approaches_a_real_image() -> None:
    """Both the objective and the error of the image decrease."""
    sample = load_sample()
    x, y = sample.images[:1, None], sample.labels[:1, None]
    torch.manual_seed(0)
    task = Task(LeNet(), example=x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    start, result = (
        GGL(iterations=count).reconstruct(observation, threat=ThreatModel(generator=True)) for count in (1, 8)
    )
    assert bool((result.objective < 0.5 * start.objective).all())
    assert float((result.x - x).square().mean()) < float((start.x - x).square().mean())


def test_small_gradients_are_matched_as_well(victims: tuple[Tensor, Tensor]) -> None:
    """A trained model has small gradients; L-BFGS must not stop because of that."""
    x, y = victims
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0, 0].numel(), 10), torch.nn.GELU())
    model.append(torch.nn.Linear(10, 10))
    errors = []
    for size in (1.0, 1e-4):
        task = Task(model, x[0], lambda out, y, size=size: size * torch.nn.functional.cross_entropy(out, y))
        observation = Observation.of(task, NoDefense().protect(task, x, y), labels=y)
        result = make_attack("idlg:iterations=1").reconstruct(observation, threat=ThreatModel(labels=True))
        errors.append(float((result.x - x).square().mean()))
    assert max(errors) < 0.001
