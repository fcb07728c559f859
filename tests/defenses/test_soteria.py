"""Soteria prunes the features it says it prunes, in the layers it says, and in each sample on its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner import LeNet, ProtectionError, RefinerError, Task
from refiner.attacks import InvertingGradients, Observation, ThreatModel
from refiner.core.gradients import Gradients, gradients
from refiner.data import load_sample
from refiner.defenses import Soteria, make_defense
from refiner.defenses.sensitivity import exact, features
from refiner.defenses.soteria import last_linear
from refiner.errors import SettingError, UnsupportedModelError
from refiner.metrics import psnr
from refiner.models import build, resnet

ORIGINAL = Soteria(variant="original")
IMPROVED = Soteria()
both = pytest.mark.parametrize("defense", [ORIGINAL, IMPROVED], ids=["original", "improved"])


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=torch.rand(2, 3, 32, 32))


@pytest.fixture(scope="module")
def single() -> tuple[Tensor, Tensor]:
    sample = load_sample()
    return sample.images[:3, None], sample.labels[:3, None]


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    sample = load_sample()
    return sample.images[:6].view(2, 3, 3, 32, 32), sample.labels[:6].view(2, 3)


def close(a: Tensor, b: Tensor, allowed: float = 1e-5) -> bool:
    return float((a - b).norm()) <= allowed * float(b.norm())


@both
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_pruned_columns_are_exactly_zero(
    defense: Soteria, rate: float, task: Task, single: tuple[Tensor, Tensor]
) -> None:
    """Those of the features with the smallest ‖∂r_i/∂x‖ / |r_i|, and no others."""
    weight = replace(defense, rate=rate).protect(task, *single).tensors["head.weight"]
    r, norms = features(task, single[0], "head")[:, 0], exact(task, single[0], "head")[:, 0]
    for victim in range(3):
        smallest = set((norms[victim] / r[victim].abs()).argsort()[: int(rate * 768)].tolist())
        assert set((weight[victim] == 0).all(0).nonzero().flatten().tolist()) == smallest


@both
def test_without_pruning_it_is_the_plain_gradient(
    defense: Soteria, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    found, plain = replace(defense, rate=0.0).protect(task, *batch).tensors, gradients(task, *batch)
    assert all(torch.equal(found[name], plain[name]) for name in task.names)


def test_original_changes_the_linear_weight_alone(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    found, plain = ORIGINAL.protect(task, *batch).tensors, gradients(task, *batch)
    for name in task.names:
        assert torch.equal(found[name], plain[name]) == (name != "head.weight")


def test_improved_changes_every_layer(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    found, plain = IMPROVED.protect(task, *batch).tensors, gradients(task, *batch)
    # At initialisation the scores hardly move, and with them the last bias's gradient.
    assert not close(found["head.bias"], plain["head.bias"], 1e-3)
    others = [name for name in task.names if name != "head.bias"]
    assert not any(close(found[name], plain[name], 0.3) for name in others)


def by_hand(task: Task, x: Tensor, y: Tensor, kept: Tensor, variant: str) -> Gradients:
    """Both variants from their equations, for one victim."""
    model = task.model
    r = model.body(x).flatten(1)
    used = r * kept if variant == "improved" else r
    scores = model.head(used)
    found = torch.autograd.grad(F.cross_entropy(scores, y), list(model.parameters()))
    told = dict(zip(dict(model.named_parameters()), found, strict=True))
    slope = (scores.softmax(1) - F.one_hot(y, 10)) / len(y)
    told["head.weight"] = (slope.T @ (r * kept)).detach()
    return told


@both
def test_a_batch_is_pruned_sample_by_sample(
    defense: Soteria, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    found, kept = defense.protect(task, *batch).tensors, defense.kept(task, batch[0])
    assert kept.sum(-1).eq(384).all()
    assert not torch.equal(kept[0, 0], kept[0, 1])
    for victim in range(2):
        wanted = by_hand(task, batch[0][victim], batch[1][victim], kept[victim], defense.variant)
        assert all(close(found[name][victim], wanted[name]) for name in task.names)


@both
@pytest.mark.parametrize("sensitivity", ["exact", "estimated"])
def test_neither_neighbours_nor_chunks_matter(
    sensitivity: str, defense: Soteria, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    chosen = replace(defense, sensitivity=sensitivity, probes=4)
    together = chosen.protect(task, x, y)
    assert close(replace(chosen, chunk=100).protect(task, x, y).flat(), together.flat())
    assert close(chosen.protect(task, x[1], y[1]).flat()[0], together.flat()[1])
    assert torch.equal(chosen.protect(task, x, y).flat(), together.flat())


def test_an_estimate_is_the_same_at_every_upload_and_follows_a_seed(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    defense = Soteria(sensitivity="estimated", probes=4)
    first, again = (Soteria(**defense.settings()).protect(task, *batch).flat() for _ in range(2))
    assert torch.equal(first, again)
    seeded = [defense.protect(task, *batch, seed=seed).flat() for seed in (5, 5, 6)]
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])


def test_an_estimate_prunes_nearly_the_same_features(task: Task, single: tuple[Tensor, Tensor]) -> None:
    wanted = Soteria().kept(task, single[0])
    shares = []
    for probes in (4, 64):
        kept = Soteria(sensitivity="estimated", probes=probes).kept(task, single[0])
        shares.append(float(((1 - kept) * (1 - wanted)).sum() / (1 - wanted).sum()))
    assert 0.8 < shares[0] < shares[1]
    assert shares[1] > 0.95


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet10", {}),
        ("resnet10", {"norm": "batch"}),
        ("vit", {"width": 16, "depth": 2, "heads": 2}),
        ("lenet", {"activation": "relu"}),
    ],
)
def test_other_models(
    name: str, settings: dict[str, object], batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resnet, "WIDTHS", (32, 32, 64, 64))
    torch.manual_seed(0)
    x, y = batch[0][:, :2, :, :8, :8], batch[1][:, :2]
    task = Task(build(name, input_shape=(3, 8, 8), **settings), example=x[0])
    assert last_linear(task) == "head"
    update = Soteria(rate=0.9, sensitivity="estimated", probes=2).protect(task, x, y)
    assert (update.tensors["head.weight"] == 0).all(1).any()


def test_a_feature_that_is_zero_is_pruned_last() -> None:
    task = Task(nn.Linear(4, 3), example=torch.rand(2, 4))
    kept = Soteria(rate=0.5).kept(task, torch.tensor([[[0.0, 0.1, 0.0, -0.2]]]))
    assert kept.tolist() == [[[1, 0, 1, 0]]]


def test_the_rate_is_counted_as_written() -> None:
    task = Task(nn.Linear(100, 3), example=torch.rand(2, 100))
    for rate in (0.29, 0.57, 0.999, np.float64(0.29)):
        kept = Soteria(rate=rate).kept(task, torch.rand(1, 1, 100))
        assert int((kept == 0).sum()) == int(round(rate * 1000) // 10)


def test_a_sample_is_pruned_alike_in_every_batch(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    """Whatever its neighbours and its place: what is pruned once and kept another time would be seen."""
    defense = Soteria(sensitivity="estimated", probes=4)
    kept = defense.kept(task, batch[0])
    assert torch.equal(defense.kept(task, batch[0].flip(1)), kept.flip(1))
    assert torch.equal(defense.kept(task, batch[0].flatten(0, 1)[:, None])[:, 0], kept.flatten(0, 1))


def test_a_rate_that_prunes_nothing_is_refused() -> None:
    task = Task(nn.Linear(8, 3), example=torch.rand(2, 8))
    with pytest.raises(
        SettingError, match=r"^rate = 0\.1: expected 0, or enough to prune one of 8 features$"
    ):
        Soteria(rate=0.1).protect(task, torch.rand(1, 8), torch.zeros(1, dtype=torch.long))


class Scaled(nn.Linear):
    """A layer that is more than a product."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_last_layer_of_its_own_kind_is_refused() -> None:
    """And not an earlier one pruned in its place."""
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Scaled(5, 3)), example=torch.rand(2, 4))
    with pytest.raises(UnsupportedModelError, match=r"^soteria: 2, the last linear layer, is a Scaled"):
        Soteria().protect(task, torch.rand(1, 4), torch.zeros(1, dtype=torch.long))


class Tokens(nn.Module):
    """Its last linear layer is given three tokens a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x).tanh()).mean(1)
        return out


@both
def test_features_of_several_tokens(defense: Soteria) -> None:
    torch.manual_seed(0)
    task = Task(Tokens(), example=torch.rand(2, 3, 4))
    x, y = torch.rand(2, 2, 3, 4), torch.zeros(2, 2, dtype=torch.long)
    assert defense.kept(task, x).sum(-1).eq(9).all()
    found, plain = defense.protect(task, x, y).tensors["head.weight"], gradients(task, x, y)["head.weight"]
    assert not close(found, plain, 1e-2)


def test_a_model_without_a_linear_layer_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 32), nn.Flatten())
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with pytest.raises(UnsupportedModelError, match=r"^soteria: the model trains no nn\.Linear") as raised:
        Soteria().protect(task, torch.rand(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))
    assert "\n" not in str(raised.value)


def test_a_frozen_linear_layer_is_passed_over() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[2].weight.requires_grad_(False)
    assert last_linear(Task(model, example=torch.rand(2, 4))) == "0"


class Root(nn.Module):
    """Its features' slope is infinite where the input is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.abs().sqrt() + 1)
        return out


@both
def test_slopes_that_are_no_numbers_let_nothing_out(defense: Soteria) -> None:
    task = Task(Root(), example=torch.rand(2, 4))
    with pytest.raises(ProtectionError, match="nothing leaves"):
        defense.protect(task, torch.zeros(1, 4), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rate", 1),
        ("rate", -0.1),
        ("rate", True),
        ("rate", float("nan")),
        ("rate", "half"),
        ("variant", "best"),
        ("sensitivity", "guessed"),
        ("probes", 0),
        ("chunk", 0),
    ],
)
def test_wrong_settings_are_one_line(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"^{setting} = .*: expected") as raised:
        Soteria(**{setting: value})  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_by_name_and_what_it_says_of_itself() -> None:
    named = make_defense("soteria:rate=0.7,variant=original")
    assert named.settings() == {
        "rate": 0.7,
        "variant": "original",
        "sensitivity": "exact",
        "probes": 16,
        "chunk": None,
    }
    assert make_defense("soteria") == Soteria(variant="improved")
    assert named.needs == "data"
    assert all(d.guarantee().startswith("none: ") for d in (ORIGINAL, IMPROVED))


def test_a_model_that_returns_nan_lets_nothing_out(single: tuple[Tensor, Tensor]) -> None:
    model = LeNet()
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    for defense in (ORIGINAL, IMPROVED):
        with pytest.raises(RefinerError, match="nothing leaves"):
            defense.protect(task, *single)


def test_an_attacker_who_leaves_out_the_linear_layer(single: tuple[Tensor, Tensor]) -> None:
    """From the original it makes what it makes of an undefended gradient, from the improved one not."""
    x, y = single[0][:1, :, :, 8:24, 8:24], single[1][:1]
    torch.manual_seed(0)
    task = Task(build("lenet", input_shape=(3, 16, 16)), example=x[0])
    names = ("none", "soteria:variant=original", "soteria")
    seen = [Observation.of(task, make_defense(name).protect(task, x, y), labels=y) for name in names]
    three = replace(seen[0], gradient=torch.cat([s.gradient for s in seen]), labels=y.expand(3, 1))
    muted = InvertingGradients(iterations=100, without="head")
    rebuilt = muted.reconstruct(three, threat=ThreatModel(labels=True)).x
    bare, original, improved = psnr(rebuilt[:, 0], x[0].expand(3, -1, -1, -1)).tolist()
    colour = psnr(x[0].mean((-2, -1), keepdim=True).expand_as(x[0]), x[0]).item()
    assert min(bare, original) > 20
    assert improved < colour
