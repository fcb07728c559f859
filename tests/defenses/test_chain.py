"""Chains of defences: each part transforms the result of the one before, with its own noise."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from refiner import DataError, LeNet, NoDefense, ProtectionError, Refiner, SettingError, Task, Update
from refiner.core.gradients import Gradients
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses import (
    DEFENSES,
    Batch,
    Chain,
    Defense,
    DPGaussian,
    GradientTransform,
    Upload,
    WireFormat,
    make_defense,
)
from refiner.defenses.chain import gradient_transforms


@dataclass(frozen=True)
class Blur(GradientTransform):
    """Adds uniform noise by the victim's index."""

    name: ClassVar[str] = "blur"
    cost: ClassVar[str] = "a draw"
    width: float = 1.0
    reach: tuple[float, float] = (0.0, 1.0)

    def guarantee(self) -> str:
        return "a proof"

    def wire_format(self, incoming: WireFormat) -> WireFormat:
        return WireFormat(bits=16)

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        size = len(next(iter(gradient.values())))
        victims = torch.arange(size)
        return {n: g + self.width * noise.uniform(victims, tuple(g.shape[1:])) for n, g in gradient.items()}


@dataclass(frozen=True)
class Scale(GradientTransform):
    name: ClassVar[str] = "scale"
    by: float = 2.0

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        return {name: self.by * samples * g for name, g in gradient.items()}


@dataclass(frozen=True)
class Forgiving(GradientTransform):
    """Turns NaN into zeros, which must not hide the failure of an earlier part."""

    name: ClassVar[str] = "forgiving"

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        return {name: g.nan_to_num(0, 0, 0) for name, g in gradient.items()}


@dataclass(frozen=True)
class Watching(Defense):
    name: ClassVar[str] = "watching"
    seen: list[Batch]

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        self.seen.append(batch)
        return Upload({name: torch.zeros(len(batch.x), *shape) for name, shape in task.shapes.items()})


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=torch.rand(2, 3, 32, 32))


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    sample = load_sample()
    return sample.images[:4].view(2, 2, 3, 32, 32), sample.labels[:4].view(2, 2)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for factory in (Blur, Scale):
        monkeypatch.setitem(DEFENSES._builtin, factory.name, factory)


def test_each_part_transforms_the_result_of_the_one_before(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    raw = NoDefense().protect(task, *batch).flat()
    upload = Chain((Scale(3.0), Scale(0.5), NoDefense())).protect(task, *batch)
    # Each part also multiplies by the number of samples, 2.
    torch.testing.assert_close(upload.flat(), 6 * raw)
    assert (upload.defense, upload.victims, upload.samples) == ("scale+scale+none", 2, 2)


def test_a_chain_of_one_part_equals_that_part(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    for part in (Refiner(iterations=1), Blur()):
        alone = part.protect(task, *batch, seed=3).flat()
        assert torch.equal(Chain((part,)).protect(task, *batch, seed=3).flat(), alone)


def test_the_first_part_computes_the_same_as_alone(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    alone = Refiner(iterations=1).protect(task, *batch, seed=3).flat()
    upload = Chain((Refiner(iterations=1), Scale(0.5))).protect(task, *batch, seed=3).flat()
    assert torch.equal(upload, alone)


def test_parts_draw_independent_noise(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    raw = NoDefense().protect(task, *batch).flat()
    once = Blur().protect(task, *batch, seed=1).flat() - raw
    twice = Chain((Blur(), Blur())).protect(task, *batch, seed=1).flat() - raw
    second = twice - once
    correlation = torch.corrcoef(torch.stack([once[0], second[0]]))
    assert abs(float(correlation[0, 1])) < 5 / once.shape[1] ** 0.5
    again, other = (Chain((Blur(), Blur())).protect(task, *batch, seed=s).flat() - raw for s in (1, 2))
    assert torch.equal(again, twice) and not torch.equal(other, twice)


def test_later_parts_draw_new_noise_in_every_round_without_a_seed(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    """Refiner keeps its key for a whole training; the noise of later parts must not repeat."""
    defense = Chain((Refiner(), Blur()))
    first, second = (defense.protect(task, *batch).flat() for _ in range(2))
    bare = defense.parts[0].protect(task, *batch).flat()
    assert torch.equal(bare, defense.parts[0].protect(task, *batch).flat())
    correlation = torch.corrcoef(torch.stack([(first - bare)[0], (second - bare)[0]]))
    assert abs(float(correlation[0, 1])) < 5 / first.shape[1] ** 0.5


def test_the_state_of_a_chain_is_that_of_its_first_part(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    defense = Chain((Refiner(iterations=4, search="always"), Scale()))
    state = defense.init_state()
    defense.protect(task, *batch, seed=0, state=state)
    assert not state.state_dict()
    defense.protect(task, *batch, state=state)
    assert len(state.state_dict()["residuals"]) == len(batch[0])


def test_a_chain_returns_the_robust_data_of_its_first_part(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    first = Refiner(iterations=0)
    alone, chained = (d.protection(task, *batch, seed=0).robust for d in (first, Chain((first, Scale()))))
    assert alone is not None and chained is not None and torch.equal(alone, chained)
    assert Chain((Blur(), Scale())).protection(task, *batch).robust is None


def test_a_chain_has_the_networks_and_transforms_of_its_parts(task: Task) -> None:
    refiner = Chain((Refiner(), Blur()))
    assert list(refiner.networks(task)) == ["noise statistics"]
    assert gradient_transforms(refiner) == ()
    assert not Chain((Blur(), Scale())).networks(task)
    assert gradient_transforms(Chain((Blur(), Scale()))) == (Blur(), Scale())
    assert gradient_transforms(Chain((DPGaussian(per_sample=True), Blur()))) == ()


def test_the_parts_of_a_chain_are_read_only() -> None:
    with pytest.raises(AttributeError):
        Chain((Blur(),)).parts = ()  # type: ignore[misc]


def test_ids_and_data_reach_the_first_part(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    seen: list[Batch] = []
    ids = torch.arange(4).view(2, 2)
    Chain((Watching(seen), Scale())).protect(task, *batch, ids=ids)
    assert torch.equal(seen[0].ids, ids)  # type: ignore[arg-type]
    assert torch.equal(seen[0].x, batch[0])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda: (), "parts = (): expected one defence or more"),
        (
            lambda: (Blur(), Refiner()),
            "parts: refiner in position 2 needs the data, and can only be the first",
        ),
        (
            lambda: (Refiner(), Blur(), Refiner()),
            "parts: refiner in position 3 needs the data, and can only be the first",
        ),
        (lambda: (Blur(), Chain((Refiner(), Blur()))), "parts: refiner in position 2 needs the data"),
        (
            lambda: (Blur(), DPGaussian(per_sample=True)),
            "parts: dp-gaussian in position 2 needs the data, and can only be the first",
        ),
        (lambda: (Blur(), "blur"), "parts: str in position 2, expected a Defense"),
        (lambda: "none+none", "parts = 'none+none': expected one defence or more"),
    ],
)
def test_invalid_parts_raise_a_one_line_error(parts: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError) as raised:
        Chain(parts())  # type: ignore[arg-type]
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_per_sample_clipping_can_be_the_first_part(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    first = DPGaussian(per_sample=True)
    alone = first.protect(task, *batch, seed=2).flat()
    upload = Chain((first, Scale(0.5))).protect(task, *batch, seed=2).flat()
    assert torch.equal(upload, alone)


def test_nested_chains_are_flattened() -> None:
    flat = Chain((Blur(), Scale(), Scale(0.5)))
    assert Chain((Chain((Blur(), Scale())), Scale(0.5))) == flat
    assert Chain([Chain([Chain([Blur()])]), Scale(), Chain([Scale(0.5)])]) == flat
    assert hash(flat) == hash(Chain((Blur(), Scale(), Scale(0.5))))


def test_values_that_are_not_finite_between_parts_raise(batch: tuple[Tensor, Tensor]) -> None:
    model = LeNet()
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with pytest.raises(ProtectionError, match=r"none made values that are not finite; no update was made"):
        Chain((NoDefense(), Forgiving())).protect(task, *batch)
    with pytest.raises(DataError, match="NaN"):
        Chain((Refiner(), Blur())).protect(task, batch[0] * torch.nan, batch[1])


def test_name_needs_and_settings_of_a_chain(task: Task, batch: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    defense = Chain((Refiner(iterations=0, secret=bytes(range(32))), Blur(width=0.5), Blur()))
    assert defense.name == "refiner+blur+blur" and defense.needs == "data"
    assert Chain((Blur(), Scale())).needs == "gradient"
    settings = defense.settings()
    assert (
        settings["refiner.iterations"] == 0
        and settings["blur.width"] == 0.5
        and settings["blur 2.width"] == 1.0
    )
    assert set(settings) == {
        *(f"refiner.{name}" for name in Refiner().settings()),
        *(f"{name}.{key}" for name in ("blur", "blur 2") for key in ("width", "reach")),
    }
    assert not any("secret" in key for key in settings)
    update = defense.protect(task, *batch)
    assert update.settings == settings
    update.save(tmp_path / "update.safetensors")
    again = Update.load(tmp_path / "update.safetensors")
    assert again.settings == settings and again.defense == "refiner+blur+blur"


def test_the_guarantee_lists_that_of_each_part() -> None:
    last = Chain((Refiner(), Blur())).guarantee()
    assert last == (
        "refiner: none: the protection is measured, not proven; "
        "then blur, for the gradient it receives: a proof"
    )
    assert Chain((Blur(),)).guarantee() == "blur: a proof"
    first = Chain((Blur(), Scale())).guarantee()
    assert first.startswith("blur: a proof; then scale, for the gradient it receives: none")
    assert Chain((Blur(), Scale())).cost == "blur: a draw; then scale: not stated"


def test_a_chain_does_not_reveal_or_copy_a_secret() -> None:
    defense = Chain((Refiner(secret=bytes(range(32))), Blur()))
    with pytest.raises(TypeError, match="secret key"):
        copy.deepcopy(defense)
    assert "secret" not in repr(defense)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blur+scale", (Blur(), Scale())),
        ("blur:width=0.5+scale:by=3", (Blur(width=0.5), Scale(3))),
        ("blur:width=1e+2+scale:by=1e+1", (Blur(width=1e2), Scale(10.0))),
        ("scale:by=+2+blur", (Scale(2), Blur())),
        ("blur:reach=(0,1e+1),width=2+scale+scale", (Blur(2, (0, 10.0)), Scale(), Scale())),
        ("refiner:iterations=3+blur:", (Refiner(iterations=3), Blur())),
        ("none+none", (NoDefense(), NoDefense())),
    ],
)
def test_chains_are_made_from_text(text: str, expected: tuple[Defense, ...]) -> None:
    assert make_defense(text) == Chain(expected)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blur+scal", "defense = 'scal': unknown; did you mean 'scale'?"),
        ("blu+scale:by=1", "defense = 'blu': unknown; did you mean 'blur'?"),
        ("blur+", "defense = '': unknown"),
        ("blur+scale:of=1", "setting of scale = 'of': unknown"),
        ("blur+refiner", "refiner in position 2 needs the data"),
        ("refiner:iterations=1+gausian:x=1", "iterations = '1+gausian:x=1'"),
    ],
)
def test_invalid_chain_text_raises_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises((DataError, SettingError)) as raised:
        make_defense(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.usefixtures("registered")
def test_settings_beside_the_text_of_a_chain_raise() -> None:
    assert make_defense("scale", by=3) == Scale(3)
    with pytest.raises(DataError, match="'blur\\+scale': the settings of a chain belong in its text"):
        make_defense("blur+scale", by=3)
