"""Every attack: undefended recovery, refusal by the threat model, determinism, chunks, resume, divergence."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.attacks.conftest import ALL, QUICK
from torch import Tensor

from refiner.attacks import (
    ATTACKS,
    GGL,
    Attack,
    GradInversion,
    InvertingGradients,
    Observation,
    ThreatModel,
    checkpoint,
    make_attack,
    matching,
)
from refiner.attacks.search import FirstOrder, Search
from refiner.core import Task
from refiner.core.optim import Adam
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.errors import DataError, SettingError, ThreatModelError
from refiner.models import LeNet
from refiner.registry import dataclass_of

EACH = pytest.mark.parametrize("name", QUICK)


def short(name: str, iterations: int = 4) -> Attack:
    # DLG and iDLG count twenty steps as one, and in more of them L-BFGS magnifies rounding.
    few = 1 if name in ("dlg", "idlg") else iterations
    return replace(QUICK[name], iterations=few)  # type: ignore[type-var]


def test_each_attack_has_a_quick_run() -> None:
    assert {type(attack) for attack in QUICK.values()} == {dataclass_of(make) for make in ATTACKS.values()}
    assert all(attack.name == name for name, attack in QUICK.items())


@pytest.mark.parametrize(
    ("text", "attack"),
    [
        ("inverting-paper", InvertingGradients.paper()),
        ("inverting-paper:iterations=3,lr=0.5", InvertingGradients.paper(iterations=3, lr=0.5)),
        ("gradinversion-paper", GradInversion.paper()),
        ("ggl-paper", GGL.paper()),
    ],
)
def test_the_papers_settings_by_name(text: str, attack: Attack) -> None:
    made, name = make_attack(text), text.partition("-")[0]
    assert type(made) is type(attack) and made.settings() == attack.settings()
    assert made.settings() != make_attack(name).settings()
    # What it is called in a result, as its plain form is: a result tells its settings apart.
    assert made.name == name


@EACH
def test_recovers_undefended_images(
    name: str, seen: Observation, light: Observation, victims: tuple[Tensor, Tensor]
) -> None:
    x, y = victims
    # LeNet for one of them; the others differ from it in the rest.
    seen = seen if name == "dlg" else light
    # What a generator can't make it can't rebuild.
    rows = slice(2, 3) if name == "ggl" else slice(None)
    found = QUICK[name].reconstruct(seen, threat=ALL)
    assert torch.equal(found.labels, y)
    assert not bool(found.diverged.any())
    error = (found.x - x).square().flatten(1).mean(1)[rows]
    blind = (x - x.mean((-2, -1), keepdim=True)).square().flatten(1).mean(1)[rows]
    assert bool((error < 0.15 * blind).all()), (error, blind)
    assert found.x.shape == x.shape and float(found.x.min()) >= 0 and float(found.x.max()) <= 1


@EACH
def test_refuses_what_is_not_granted(name: str, seen: Observation, victims: tuple[Tensor, Tensor]) -> None:
    for need in QUICK[name].needs:
        with pytest.raises(ThreatModelError, match=f"{name} needs {need}"):
            short(name).reconstruct(seen, threat=replace(ALL, **{need: False}))
    with pytest.raises(ThreatModelError, match="labels"):
        short(name).reconstruct(replace(seen, labels=victims[1]), threat=ALL)
    with pytest.raises(DataError, match="holds none"):
        short(name).reconstruct(seen, threat=replace(ALL, labels=True))


@pytest.mark.usefixtures("few_steps")
@EACH
def test_same_seed_same_result_in_every_chunk(name: str, light: Observation) -> None:
    one, again, apart, other = (
        short(name).reconstruct(light, threat=ALL, seed=seed, chunk=chunk).x
        for seed, chunk in ((1, 3), (1, 3), (1, 2), (2, 3))
    )
    assert torch.equal(one, again)
    torch.testing.assert_close(one, apart, rtol=1e-3, atol=1e-3)
    assert not torch.equal(one, other)


@pytest.mark.usefixtures("few_steps")
@EACH
def test_goes_on_after_a_kill(
    name: str, light: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_BLOCK", 2)
    monkeypatch.setattr(checkpoint, "_SAVE", 0.0)
    attack, state = short(name), tmp_path / "state.safetensors"
    whole = attack.reconstruct(light, threat=ALL, chunk=2)
    total = 3 * attack.engine().iterations * attack.engine().restarts  # type: ignore[attr-defined]
    calls: list[int] = []

    def kill(done: int, of: int) -> None:
        assert of == total
        calls.append(done)
        # Once within the first chunk, once within the second.
        if len(calls) in (1, 4):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            attack.reconstruct(light, threat=ALL, chunk=2, resume=state, on_progress=kill)
    rest = attack.reconstruct(light, threat=ALL, chunk=2, resume=state, on_progress=kill)
    assert torch.equal(rest.x, whole.x) and torch.equal(rest.objective, whole.objective)
    assert sorted(calls) == calls
    before = state.read_bytes()
    with pytest.raises(DataError, match="differs in seed; nothing was overwritten"):
        attack.reconstruct(light, threat=ALL, chunk=2, seed=5, resume=state)
    assert state.read_bytes() == before


@pytest.mark.usefixtures("few_steps")
@EACH
def test_a_victim_that_diverges_is_frozen_and_the_others_go_on(name: str, light: Observation) -> None:
    # Numbers all of them, but too large to be squared: its distance is none.
    gradient = light.gradient.clone()
    gradient[1] = 3e38
    attack = short(name, 20)
    broken = attack.reconstruct(replace(light, gradient=gradient), threat=replace(ALL, labels=False))
    assert broken.diverged.tolist() == [False, True, False]
    assert bool(broken.x.isfinite().all())
    sound = attack.reconstruct(light, threat=ALL)
    torch.testing.assert_close(broken.x[[0, 2]], sound.x[[0, 2]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("at", [1, 7])
def test_a_guess_that_diverges_on_its_way_stands_still(at: int) -> None:
    calls = 0

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        value = z.square().flatten(1).sum(1)
        # Once, and for the second guess alone.
        value[1] += torch.nan if calls == at else 0
        return value, 2 * z

    walk = FirstOrder(Adam(lr=0.1), (), 20, lambda z: z)
    search = walk.begin(torch.ones(2, 3), evaluate)
    stood = walk.advance(search, evaluate, 0, at)
    end = walk.advance(stood, evaluate, at, 20)
    assert end.diverged.tolist() == [False, True]
    assert torch.equal(end.z[1], stood.z[1])
    assert bool((end.z[0].abs() < stood.z[0].abs()).all())
    # The best is from before it diverged, even if later values are lower.
    assert float(end.best[1]) == pytest.approx(float(end.best_z[1].square().sum()) if at > 1 else torch.inf)


def test_restarts_are_chosen_by_the_objective(light: Observation) -> None:
    """Two victims of three guesses each: the middle one is best for the first, the last for the second."""
    best = torch.tensor([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    z, diverged = torch.arange(6.0)[:, None], torch.tensor([False, False, True, False, False, True])
    search = Search(z, z, best, diverged, ())
    picked, value, lost = matching.Matching(restarts=3)._chosen(search)
    assert picked.flatten().tolist() == [1, 5] and value.tolist() == [1, 4] and lost.tolist() == [False, True]
    many = replace(QUICK["inverting"], iterations=2, restarts=3)  # type: ignore[type-var]
    assert many.reconstruct(light).x.shape[0] == 3


def test_several_uploads_are_one_attack(light: Observation, victims: tuple[Tensor, Tensor]) -> None:
    draws = torch.Generator().manual_seed(0)
    noise = [torch.randn(light.gradient.shape, generator=draws) for _ in range(4)]
    noisy = [replace(light, gradient=light.gradient + 0.5 * light.gradient.std() * n) for n in noise]
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
def test_wrong_settings(name: str, field: str, value: object) -> None:
    with pytest.raises(SettingError):
        make_attack(name, **{field: value})


def test_unknown_attack() -> None:
    with pytest.raises(DataError, match="did you mean 'gradinversion'"):
        make_attack("grad-inversion")


def test_a_generator_of_another_size(task: object, seen: Observation) -> None:
    class Wrong:
        latent = 3

        def __call__(self, z: Tensor, y: Tensor) -> Tensor:
            return z.new_zeros(len(z), 3, 8, 8)

    attack = replace(QUICK["ggl"], generator=Wrong())  # type: ignore[type-var]
    with pytest.raises(DataError, match=r"makes images \[3, 8, 8\], the task takes \[3, 16, 16\]"):
        attack.reconstruct(seen, threat=ThreatModel(generator=True))


def test_a_wrong_flag(seen: Observation) -> None:
    with pytest.raises(SettingError, match="deterministic = 1: expected True or False"):
        short("inverting").reconstruct(seen, deterministic=1)  # type: ignore[arg-type]


def test_an_interrupt_between_two_states_loses_nothing(
    light: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BFGS writes into its history as it goes; what is stored on Ctrl-C must be of one moment."""
    # So short a history that what a step writes is over what the state before it needs.
    attack, state = replace(short("idlg"), history=3), tmp_path / "state.safetensors"  # type: ignore[type-var]
    monkeypatch.setattr(matching, "_BLOCK", 5)
    whole = attack.reconstruct(light)
    computed = 0
    compute = matching._Objective.__call__

    def interrupted(self: matching._Objective, z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal computed
        computed += 1
        if computed == 15:
            raise KeyboardInterrupt
        return compute(self, z)

    monkeypatch.setattr(matching._Objective, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attack.reconstruct(light, resume=state)
    assert torch.equal(attack.reconstruct(light, resume=state).x, whole.x)


def test_half_precision_models_are_attacked_in_float32(
    victims: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x, y = victims[0].bfloat16(), victims[1]
    task = Task(LeNet(input_shape=tuple(x.shape[2:])).bfloat16(), example=x[0])
    seen = Observation.of(task, NoDefense().protect(task, x, y))
    found = short("inverting").reconstruct(seen, resume=tmp_path / "state.safetensors")
    assert found.x.dtype == torch.float32 and not bool(found.diverged.any())


def test_inputs_without_height_and_width() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Sigmoid(), torch.nn.Linear(30, 10))
    x, y = torch.rand(2, 1, 20), torch.tensor([[1], [2]])
    task = Task(model, example=x[0])
    found = short("inverting").reconstruct(Observation.of(task, NoDefense().protect(task, x, y)))
    assert not bool(found.diverged.any()) and bool(found.objective.isfinite().all())


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
def test_wrong_settings_as_text(text: str) -> None:
    with pytest.raises(SettingError):
        make_attack(text)


def test_a_generator_by_its_file(seen: Observation, tmp_path: Path) -> None:
    attack = make_attack(f"ggl:iterations=1,generator={tmp_path / 'g.safetensors'}")
    with pytest.raises(DataError, match=r"g\.safetensors.*not a generator"):
        attack.check(seen.task)


def test_a_generator_for_a_model_in_half_precision() -> None:
    sample = load_sample()
    x, y = sample.images[:1, None].bfloat16(), sample.labels[:1, None]
    torch.manual_seed(0)
    task = Task(LeNet().bfloat16(), example=x[0])
    seen = Observation.of(task, NoDefense().protect(task, x, y))
    found = GGL(iterations=1).reconstruct(seen, threat=ThreatModel(generator=True))
    assert found.x.shape == x.shape and bool(found.x.isfinite().all())


def test_a_generator_of_fewer_classes_is_refused() -> None:
    task = Task(LeNet(classes=12), example=torch.rand(1, 3, 32, 32))
    with pytest.raises(DataError, match=r"^generator: paints 10 classes, the task has 12$"):
        GGL().check(task)


def test_the_bundled_generator_comes_nearer_to_real_images() -> None:
    """Than it began, by the attacker's own measure and by the images."""
    sample = load_sample()
    x, y = sample.images[:1, None], sample.labels[:1, None]
    torch.manual_seed(0)
    task = Task(LeNet(), example=x[0])
    seen = Observation.of(task, NoDefense().protect(task, x, y))
    begun, found = (
        GGL(iterations=count).reconstruct(seen, threat=ThreatModel(generator=True)) for count in (1, 8)
    )
    assert bool((found.objective < 0.5 * begun.objective).all())
    assert float((found.x - x).square().mean()) < float((begun.x - x).square().mean())


def test_the_size_of_a_gradient_does_not_matter(victims: tuple[Tensor, Tensor]) -> None:
    """A late model's is small; the search must not stop for that."""
    x, y = victims
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0, 0].numel(), 10), torch.nn.GELU())
    model.append(torch.nn.Linear(10, 10))
    errors = []
    for size in (1.0, 1e-4):
        task = Task(model, x[0], lambda out, y, size=size: size * torch.nn.functional.cross_entropy(out, y))
        seen = Observation.of(task, NoDefense().protect(task, x, y), labels=y)
        found = make_attack("idlg:iterations=2").reconstruct(seen, threat=ThreatModel(labels=True))
        errors.append(float((found.x - x).square().mean()))
    assert max(errors) < 0.001
