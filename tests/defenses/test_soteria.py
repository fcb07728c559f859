"""Soteria prunes the right features, in the right layers, for each sample by itself."""

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
from refiner.defenses.jacobian_norms import exact_norms, layer_input
from refiner.defenses.soteria import last_linear
from refiner.errors import SettingError, UnsupportedModelError
from refiner.metrics import psnr
from refiner.models import make_model, resnet

ORIGINAL = Soteria(variant="original")
IMPROVED = Soteria()
both = pytest.mark.parametrize("defense", [ORIGINAL, IMPROVED], ids=["original", "improved"])


@pytest.fixture(scope="module")
def task() -> Task:
    """LeNet with 192 features instead of 768: exact norms take a pass for each."""
    torch.manual_seed(0)
    return Task(LeNet(input_shape=(3, 16, 16)), example=torch.rand(2, 3, 16, 16))


@pytest.fixture(scope="module")
def images() -> Tensor:
    """The middle of six real images."""
    return load_sample().images[:6, :, 8:24, 8:24]


@pytest.fixture(scope="module")
def single(images: Tensor) -> tuple[Tensor, Tensor]:
    return images[:3, None], load_sample().labels[:3, None]


@pytest.fixture(scope="module")
def batch(images: Tensor) -> tuple[Tensor, Tensor]:
    return images.view(2, 3, 3, 16, 16), load_sample().labels[:6].view(2, 3)


def close(a: Tensor, b: Tensor, allowed: float = 1e-5) -> bool:
    return float((a - b).norm()) <= allowed * float(b.norm())


@pytest.mark.hostile
@both
def test_pruned_zeros_do_not_keep_the_sign_of_what_was_removed(
    defense: Soteria, task: Task, single: tuple[Tensor, Tensor]
) -> None:
    weight = defense.protect(task, *single).tensors["head.weight"]
    zeros = weight[weight == 0]
    assert len(zeros) and not bool(zeros.signbit().any())


@both
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_pruned_columns_are_exactly_zero(
    defense: Soteria, rate: float, task: Task, single: tuple[Tensor, Tensor]
) -> None:
    """The columns of the features with the smallest ‖∂r_i/∂x‖ / |r_i|, and no others."""
    weight = replace(defense, rate=rate).protect(task, *single).tensors["head.weight"]
    r = layer_input(task, single[0], "head")[:, 0]
    norms = exact_norms(task, single[0], "head")[:, 0]
    for victim in range(3):
        smallest = set((norms[victim] / r[victim].abs()).argsort()[: int(rate * 192)].tolist())
        assert set((weight[victim] == 0).all(0).nonzero().flatten().tolist()) == smallest


@both
def test_a_rate_of_zero_gives_the_plain_gradient(
    defense: Soteria, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    upload, plain = replace(defense, rate=0.0).protect(task, *batch).tensors, gradients(task, *batch)
    assert all(torch.equal(upload[name], plain[name]) for name in task.names)


def test_the_original_variant_changes_only_the_linear_weight(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    upload, plain = ORIGINAL.protect(task, *batch).tensors, gradients(task, *batch)
    for name in task.names:
        assert torch.equal(upload[name], plain[name]) == (name != "head.weight")


def test_the_improved_variant_changes_every_layer(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    upload, plain = IMPROVED.protect(task, *batch).tensors, gradients(task, *batch)
    # At initialisation the scores, and so the last bias's gradient, change little.
    assert not close(upload["head.bias"], plain["head.bias"], 1e-3)
    others = [name for name in task.names if name != "head.bias"]
    assert not any(close(upload[name], plain[name], 0.3) for name in others)


def by_hand(task: Task, x: Tensor, y: Tensor, mask: Tensor, variant: str) -> Gradients:
    """Both variants by their equations, for one victim."""
    model = task.model
    r = model.body(x).flatten(1)
    used = r * mask if variant == "improved" else r
    scores = model.head(used)
    values = torch.autograd.grad(F.cross_entropy(scores, y), list(model.parameters()))
    expected = dict(zip(dict(model.named_parameters()), values, strict=True))
    score_gradient = (scores.softmax(1) - F.one_hot(y, 10)) / len(y)
    expected["head.weight"] = (score_gradient.T @ (r * mask)).detach()
    return expected


@both
def test_every_sample_of_a_batch_has_its_own_mask(
    defense: Soteria, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    upload, mask = defense.protect(task, *batch).tensors, defense.feature_mask(task, batch[0])
    assert mask.sum(-1).eq(96).all()
    assert not torch.equal(mask[0, 0], mask[0, 1])
    for victim in range(2):
        expected = by_hand(task, batch[0][victim], batch[1][victim], mask[victim], defense.variant)
        assert all(close(upload[name][victim], expected[name]) for name in task.names)


@both
@pytest.mark.parametrize("sensitivity", ["exact", "estimated"])
def test_other_victims_and_chunks_do_not_matter(
    sensitivity: str, defense: Soteria, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    chosen = replace(defense, sensitivity=sensitivity, probes=4)
    together = chosen.protect(task, x, y)
    assert close(replace(chosen, chunk=100).protect(task, x, y).flat(), together.flat())
    assert close(chosen.protect(task, x[1], y[1]).flat()[0], together.flat()[1])
    assert torch.equal(chosen.protect(task, x, y).flat(), together.flat())


def test_an_estimate_is_the_same_in_every_upload_and_depends_on_a_seed(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    defense = Soteria(sensitivity="estimated", probes=4)
    first, again = (Soteria(**defense.settings()).protect(task, *batch).flat() for _ in range(2))
    assert torch.equal(first, again)
    seeded = [defense.protect(task, *batch, seed=seed).flat() for seed in (5, 5, 6)]
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])


def test_an_estimate_prunes_almost_the_same_features(task: Task, single: tuple[Tensor, Tensor]) -> None:
    expected = Soteria().feature_mask(task, single[0])
    shares = []
    for probes in (4, 256):
        mask = Soteria(sensitivity="estimated", probes=probes).feature_mask(task, single[0])
        shares.append(float(((1 - mask) * (1 - expected)).sum() / (1 - expected).sum()))
    assert 0.8 < shares[0] < shares[1]
    assert shares[1] > 0.95


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet10", {"norm": "batch", "groups": 4}),
        ("vit", {"width": 16, "depth": 1, "heads": 2}),
        ("lenet", {"activation": "relu"}),
    ],
)
def test_soteria_on_other_models(
    name: str, settings: dict[str, object], batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resnet, "WIDTHS", (8, 8, 16, 16))
    torch.manual_seed(0)
    x, y = batch[0][:, :2, :, :8, :8], batch[1][:, :2]
    task = Task(make_model(name, input_shape=(3, 8, 8), **settings), example=x[0])
    assert last_linear(task) == "head"
    update = Soteria(rate=0.9, sensitivity="estimated", probes=2).protect(task, x, y)
    assert (update.tensors["head.weight"] == 0).all(1).any()


def test_features_that_are_zero_are_pruned_last() -> None:
    task = Task(nn.Linear(4, 3), example=torch.rand(2, 4))
    mask = Soteria(rate=0.5).feature_mask(task, torch.tensor([[[0.0, 0.1, 0.0, -0.2]]]))
    assert mask.tolist() == [[[1, 0, 1, 0]]]


def test_the_number_of_pruned_features_is_exact() -> None:
    task = Task(nn.Linear(100, 3), example=torch.rand(2, 100))
    for rate in (0.29, 0.57, 0.999, np.float64(0.29)):
        mask = Soteria(rate=rate).feature_mask(task, torch.rand(1, 1, 100))
        assert int((mask == 0).sum()) == int(round(rate * 1000) // 10)


def test_a_sample_has_the_same_mask_in_every_batch(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    """In any position: a feature that is pruned in one upload and kept in another would be revealed."""
    defense = Soteria(sensitivity="estimated", probes=4)
    mask = defense.feature_mask(task, batch[0])
    assert torch.equal(defense.feature_mask(task, batch[0].flip(1)), mask.flip(1))
    assert torch.equal(defense.feature_mask(task, batch[0].flatten(0, 1)[:, None])[:, 0], mask.flatten(0, 1))


def test_a_rate_that_prunes_nothing_raises() -> None:
    task = Task(nn.Linear(8, 3), example=torch.rand(2, 8))
    with pytest.raises(
        SettingError, match=r"^rate = 0\.1: expected 0, or enough to prune one of 8 features$"
    ):
        Soteria(rate=0.1).protect(task, torch.rand(1, 8), torch.zeros(1, dtype=torch.long))


class Scaled(nn.Linear):
    """A linear layer with its own forward."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_last_linear_layer_with_its_own_forward_raises() -> None:
    """And no earlier layer is pruned instead."""
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Scaled(5, 3)), example=torch.rand(2, 4))
    with pytest.raises(UnsupportedModelError, match=r"^soteria: 2, the last linear layer, is a Scaled"):
        Soteria().protect(task, torch.rand(1, 4), torch.zeros(1, dtype=torch.long))


class Tokens(nn.Module):
    """Its last linear layer receives three tokens per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x).tanh()).mean(1)
        return out


@both
def test_features_of_several_tokens_are_pruned(defense: Soteria) -> None:
    torch.manual_seed(0)
    task = Task(Tokens(), example=torch.rand(2, 3, 4))
    x, y = torch.rand(2, 2, 3, 4), torch.zeros(2, 2, dtype=torch.long)
    assert defense.feature_mask(task, x).sum(-1).eq(9).all()
    upload, plain = defense.protect(task, x, y).tensors["head.weight"], gradients(task, x, y)["head.weight"]
    assert not close(upload, plain, 1e-2)


def test_a_model_without_a_linear_layer_raises() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 32), nn.Flatten())
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with pytest.raises(UnsupportedModelError, match=r"^soteria: the model trains no nn\.Linear") as raised:
        Soteria().protect(task, torch.rand(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))
    assert "\n" not in str(raised.value)


def test_a_frozen_linear_layer_is_skipped() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[2].weight.requires_grad_(False)
    assert last_linear(Task(model, example=torch.rand(2, 4))) == "0"


class Root(nn.Module):
    """The derivative of its features is infinite at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.abs().sqrt() + 1)
        return out


@both
def test_derivatives_that_are_not_finite_raise(defense: Soteria) -> None:
    task = Task(Root(), example=torch.rand(2, 4))
    with pytest.raises(ProtectionError, match="no update was made"):
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
def test_settings_out_of_range_raise_a_one_line_error(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"^{setting} = .*: expected") as raised:
        Soteria(**{setting: value})  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_name_settings_and_guarantee() -> None:
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


def test_a_model_that_returns_nan_raises(single: tuple[Tensor, Tensor]) -> None:
    model = LeNet(input_shape=(3, 16, 16))
    task = Task(model, example=torch.rand(2, 3, 16, 16))
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    for defense in (ORIGINAL, IMPROVED):
        with pytest.raises(RefinerError, match="not finite"):
            defense.protect(task, *single)


@pytest.mark.processes
def test_an_attacker_who_ignores_the_linear_layer(task: Task, single: tuple[Tensor, Tensor]) -> None:
    """Reconstructs from the original variant as from an undefended gradient, but not from the improved."""
    x, y = single[0][:1], single[1][:1]
    names = ("none", "soteria:variant=original", "soteria")
    seen = [Observation.of(task, make_defense(name).protect(task, x, y), labels=y) for name in names]
    three = replace(seen[0], gradient=torch.cat([s.gradient for s in seen]), labels=y.expand(3, 1))
    muted = InvertingGradients(iterations=100, without="head")
    reconstruction = muted.reconstruct(three, threat=ThreatModel(labels=True)).x
    undefended, original, improved = psnr(reconstruction[:, 0], x[0].expand(3, -1, -1, -1)).tolist()
    colour = psnr(x[0].mean((-2, -1), keepdim=True).expand_as(x[0]), x[0]).item()
    assert min(undefended, original) > 20
    assert improved < colour
