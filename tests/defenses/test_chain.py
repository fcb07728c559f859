"""Chains of defences: each part on what the one before it made, with noise of its own."""

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
from refiner.defenses import DEFENSES, Chain, Defense, DPGaussian, make_defense
from refiner.defenses.base import Batch, GradientTransform


@dataclass(frozen=True)
class Blur(GradientTransform):
    """Uniform noise by a victim's place."""

    name: ClassVar[str] = "blur"
    cost: ClassVar[str] = "a draw"
    width: float = 1.0
    reach: tuple[float, float] = (0.0, 1.0)

    def guarantee(self) -> str:
        return "a proof"

    def wire_bytes(self, shapes: object) -> int:
        return 7

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        size = len(next(iter(gradient.values())))
        places = torch.arange(size)
        return {n: g + self.width * noise.uniform(places, tuple(g.shape[1:])) for n, g in gradient.items()}


@dataclass(frozen=True)
class Scale(GradientTransform):
    name: ClassVar[str] = "scale"
    by: float = 2.0

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        return {name: self.by * samples * g for name, g in gradient.items()}


@dataclass(frozen=True)
class Forgiving(GradientTransform):
    """Makes numbers of what are none: what came before it must not pass unseen."""

    name: ClassVar[str] = "forgiving"

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        return {name: g.nan_to_num(0, 0, 0) for name, g in gradient.items()}


@dataclass(frozen=True)
class Watching(Defense):
    name: ClassVar[str] = "watching"
    seen: list[Batch]

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        self.seen.append(batch)
        return {name: torch.zeros(len(batch.x), *shape) for name, shape in task.shapes.items()}


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
    for made in (Blur, Scale):
        monkeypatch.setitem(DEFENSES, made.name, made)


def test_each_part_is_given_what_the_one_before_it_made(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    raw = NoDefense().protect(task, *batch).flat()
    found = Chain((Scale(3.0), Scale(0.5), NoDefense())).protect(task, *batch)
    # Each doubles too, by the number of samples.
    torch.testing.assert_close(found.flat(), 6 * raw)
    assert (found.defense, found.victims, found.samples) == ("scale+scale+none", 2, 2)


def test_a_chain_of_one_is_that_one(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    for part in (Refiner(iterations=1), Blur()):
        alone = part.protect(task, *batch, seed=3).flat()
        assert torch.equal(Chain((part,)).protect(task, *batch, seed=3).flat(), alone)


def test_what_comes_first_makes_what_it_makes_alone(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    alone = Refiner(iterations=1).protect(task, *batch, seed=3).flat()
    found = Chain((Refiner(iterations=1), Scale(0.5))).protect(task, *batch, seed=3).flat()
    assert torch.equal(found, alone)


def test_each_part_has_noise_of_its_own(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    raw = NoDefense().protect(task, *batch).flat()
    once = Blur().protect(task, *batch, seed=1).flat() - raw
    twice = Chain((Blur(), Blur())).protect(task, *batch, seed=1).flat() - raw
    second = twice - once
    both = torch.corrcoef(torch.stack([once[0], second[0]]))
    assert abs(float(both[0, 1])) < 5 / once.shape[1] ** 0.5
    again, other = (Chain((Blur(), Blur())).protect(task, *batch, seed=s).flat() - raw for s in (1, 2))
    assert torch.equal(again, twice) and not torch.equal(other, twice)


def test_without_a_seed_the_noise_of_later_parts_is_new_every_round(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    """Refiner keeps its key for a whole training; noise that is to be added up must not."""
    defense = Chain((Refiner(iterations=0, warm_start=False), Blur()))
    first, second = (defense.protect(task, *batch).flat() for _ in range(2))
    bare = defense.parts[0].protect(task, *batch).flat()
    assert torch.equal(bare, defense.parts[0].protect(task, *batch).flat())
    apart = torch.corrcoef(torch.stack([(first - bare)[0], (second - bare)[0]]))
    assert abs(float(apart[0, 1])) < 5 / first.shape[1] ** 0.5


def test_refiner_remembers_in_a_chain_as_it_does_alone(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    refiner = Refiner(iterations=4, warm_start=True)
    defense = Chain((refiner, Scale()))
    defense.protect(task, *batch, seed=0)
    assert len(refiner._memory) == 0
    defense.protect(task, *batch)
    assert len(refiner._memory) == 4


def test_ids_and_data_reach_the_first_part(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    seen: list[Batch] = []
    ids = torch.arange(4).view(2, 2)
    Chain((Watching(seen), Scale())).protect(task, *batch, ids=ids)
    assert torch.equal(seen[0].ids, ids)  # type: ignore[arg-type]
    assert torch.equal(seen[0].x, batch[0])


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (lambda: (), "parts = (): expected one defence or more"),
        (lambda: (Blur(), Refiner()), "parts: refiner in place 2 needs the data, and can only stand first"),
        (
            lambda: (Refiner(), Blur(), Refiner()),
            "parts: refiner in place 3 needs the data, and can only stand first",
        ),
        (lambda: (Blur(), Chain((Refiner(), Blur()))), "parts: refiner in place 2 needs the data"),
        (
            lambda: (Blur(), DPGaussian(per_sample=True)),
            "parts: dp-gaussian in place 2 needs the data, and can only stand first",
        ),
        (lambda: (Blur(), "blur"), "parts: str in place 2, expected a Defense"),
        (lambda: "none+none", "parts = 'none+none': expected one defence or more"),
    ],
)
def test_what_is_no_chain_is_refused_in_one_line(parts: Callable[[], object], told: str) -> None:
    with pytest.raises(SettingError) as raised:
        Chain(parts())  # type: ignore[arg-type]
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_samples_that_are_clipped_one_by_one_may_stand_first(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    first = DPGaussian(per_sample=True)
    alone = first.protect(task, *batch, seed=2).flat()
    found = Chain((first, Scale(0.5))).protect(task, *batch, seed=2).flat()
    assert torch.equal(found, alone)


def test_a_chain_in_a_chain_is_one_chain() -> None:
    flat = Chain((Blur(), Scale(), Scale(0.5)))
    assert Chain((Chain((Blur(), Scale())), Scale(0.5))) == flat
    assert Chain([Chain([Chain([Blur()])]), Scale(), Chain([Scale(0.5)])]) == flat
    assert hash(flat) == hash(Chain((Blur(), Scale(), Scale(0.5))))


def test_what_is_not_finite_in_between_lets_nothing_out(batch: tuple[Tensor, Tensor]) -> None:
    model = LeNet()
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    with pytest.raises(ProtectionError, match=r"none made values that are not finite; nothing leaves"):
        Chain((NoDefense(), Forgiving())).protect(task, *batch)
    with pytest.raises(DataError, match="NaN"):
        Chain((Refiner(), Blur())).protect(task, batch[0] * torch.nan, batch[1])


def test_what_it_tells_of_itself(task: Task, batch: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    defense = Chain((Refiner(iterations=0, secret=bytes(range(32))), Blur(width=0.5), Blur()))
    assert defense.name == "refiner+blur+blur" and defense.needs == "data"
    assert Chain((Blur(), Scale())).needs == "gradient"
    told = defense.settings()
    assert told["refiner.iterations"] == 0 and told["blur.width"] == 0.5 and told["blur 2.width"] == 1.0
    assert set(told) == {
        *(f"refiner.{name}" for name in Refiner().settings()),
        *(f"{name}.{key}" for name in ("blur", "blur 2") for key in ("width", "reach")),
    }
    assert not any("secret" in key for key in told)
    update = defense.protect(task, *batch)
    assert update.settings == told
    update.save(tmp_path / "update.safetensors")
    again = Update.load(tmp_path / "update.safetensors")
    assert again.settings == told and again.defense == "refiner+blur+blur"


def test_a_guarantee_is_that_of_each_part_on_its_own_terms() -> None:
    last = Chain((Refiner(), Blur())).guarantee()
    assert last == (
        "refiner: none: what it hides is measured, not proven; then blur, for what it is given: a proof"
    )
    assert Chain((Blur(),)).guarantee() == "blur: a proof"
    first = Chain((Blur(), Scale())).guarantee()
    assert first.startswith("blur: a proof; then scale, for what it is given: none")
    assert Chain((Blur(), Scale())).cost == "blur: a draw; then scale: not told"


def test_the_secret_stays_with_the_client() -> None:
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
def test_chains_as_text(text: str, expected: tuple[Defense, ...]) -> None:
    assert make_defense(text) == Chain(expected)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("blur+scal", "defense = 'scal': unknown; did you mean 'scale'?"),
        ("blu+scale:by=1", "defense = 'blu': unknown; did you mean 'blur'?"),
        ("blur+", "defense = '': unknown"),
        ("blur+scale:of=1", "setting of scale = 'of': unknown"),
        ("blur+refiner", "refiner in place 2 needs the data"),
        ("refiner:iterations=1+gausian:x=1", "iterations = '1+gausian:x=1'"),
    ],
)
def test_wrong_chains_as_text(text: str, told: str) -> None:
    with pytest.raises((DataError, SettingError)) as raised:
        make_defense(text)
    assert told in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.usefixtures("registered")
def test_settings_beside_the_text_of_a_chain_belong_to_nobody() -> None:
    assert make_defense("scale", by=3) == Scale(3)
    with pytest.raises(DataError, match="'blur\\+scale': a chain has its settings in its text"):
        make_defense("blur+scale", by=3)
