"""APRIL: the image of a vision transformer comes back, however it embeds patches; else one line says why."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.attacks import April, Observation
from refiner.attacks.closed_form.noisy_equations import solve_noisy
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.models import MLP, LeNet, Normalized, ViT
from refiner.models.vit import Block

SAMPLE = load_sample()
X = F.avg_pool2d(SAMPLE.images[:3], 4)[:, None]
Y = SAMPLE.labels[:3, None]
SIDE, WIDTH, PATCHES = 8, 16, 4


class UserViT(nn.Module):
    """A vision transformer as users write them: any patch embedding, class token and position embedding.

    Args:
        embed: The patch embedding: "conv", or "linear" on patches whose pixels are in an order of their own.
        tokens: Class tokens in front of the patches.
        positions: The position embedding: "rows" `[T, width]` in an `nn.Embedding`, "grid"
            `[1, width, 2, 2]`, "fixed", or "learned" `[1, T, width]`.
    """

    def __init__(self, embed: str = "conv", tokens: int = 0, positions: str = "learned") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, stride=4) if embed == "conv" else nn.Linear(48, WIDTH)
        self.cls = nn.Parameter(torch.randn(1, tokens, WIDTH))
        self.positions = positions
        if positions == "rows":
            self.where = nn.Embedding(tokens + PATCHES, WIDTH)
        elif positions == "grid":
            self.grid = nn.Parameter(0.02 * torch.randn(1, WIDTH, 2, 2))
        else:
            start = 0.02 * torch.randn(1, tokens + PATCHES, WIDTH)
            self.pos = nn.Parameter(start, requires_grad=positions == "learned")
        self.blocks = nn.Sequential(Block(WIDTH, 2, 2), Block(WIDTH, 2, 2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.stem, nn.Conv2d):
            out = self.stem(x)
            patches = (out + self.grid if self.positions == "grid" else out).flatten(2).transpose(1, 2)
        else:
            # Channels last, and columns before rows.
            cut = x.unfold(3, 4, 4).unfold(2, 4, 4).permute(0, 2, 3, 4, 5, 1)
            patches = self.stem(cut.reshape(len(x), PATCHES, 48))
        tokens = torch.cat((self.cls.expand(len(x), -1, -1), patches), dim=1)
        if self.positions == "rows":
            tokens = tokens + self.where.weight
        elif self.positions != "grid":
            tokens = tokens + self.pos
        scores: Tensor = self.head(self.blocks(tokens).mean(1))
        return scores


def observe(model: nn.Module, defense: str = "none", seed: int = 0) -> Observation:
    task = Task(model, example=X[0])
    return Observation.of(task, make_defense(defense).protect(task, X, Y, seed=seed))


def small_vit() -> ViT:
    torch.manual_seed(0)
    return ViT(input_shape=(3, SIDE, SIDE), width=WIDTH, depth=2, heads=2)


def assert_exact(model: nn.Module) -> None:
    result = April().reconstruct(observe(model))
    assert float((result.x - X).abs().max()) < 1e-3
    assert torch.equal(result.labels, Y) and not bool(result.diverged.any())
    assert float(result.objective.max()) < 1e-8


@pytest.mark.parametrize(
    ("embed", "tokens", "positions"),
    [
        ("conv", 0, "learned"),
        ("linear", 0, "learned"),
        ("conv", 1, "learned"),
        ("linear", 2, "rows"),
        ("conv", 1, "grid"),
    ],
)
def test_images_come_back_for_every_form_of_the_embedding(embed: str, tokens: int, positions: str) -> None:
    torch.manual_seed(0)
    assert_exact(UserViT(embed, tokens, positions))


@pytest.mark.processes
def test_images_come_back_from_a_trained_and_from_a_normalised_model() -> None:
    model = small_vit()
    assert_exact(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    images, labels = F.avg_pool2d(SAMPLE.images[50:], 4), SAMPLE.labels[50:]
    before = float(F.cross_entropy(model(images), labels).detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()
    assert float(loss.detach()) < before - 0.04
    assert_exact(model)
    assert_exact(Normalized(model, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.25]))


def test_the_closed_form_is_least_squares_where_it_is_determined_and_grey_elsewhere() -> None:
    """With 16 patches and a width of 8 at most 8 combinations of patches are known: the rest stays grey."""
    torch.manual_seed(0)
    task = Task(ViT(input_shape=(3, SIDE, SIDE), patch=2, width=8, depth=1, heads=2), example=X[0])
    observation = Observation.of(task, make_defense("none").protect(task, X, Y))
    result = April().reconstruct(observation)
    gradient = task.unflatten(observation.gradient.double())
    tokens = gradient["position"][:, 0, 1:].mT
    patches = F.unfold(X[:, 0].double(), 2, stride=2).mT
    known = torch.linalg.pinv(tokens, rtol=1e-5) @ tokens
    expected = F.fold((0.5 + known @ (patches - 0.5)).mT, (SIDE, SIDE), 2, stride=2)
    torch.testing.assert_close(result.x[:, 0].double(), expected.clamp(0, 1), rtol=0, atol=1e-2)


@pytest.mark.parametrize("defense", ["dp-gaussian:magnitude=1e-3", "pruning:rate=0.99", "gq:bits=4"])
def test_behind_a_defence_images_are_finite_and_the_result_says_how_well_they_fit(defense: str) -> None:
    result = April().reconstruct(observe(small_vit(), defense))
    assert bool(result.x.isfinite().all()) and float(result.x.min()) >= 0 and float(result.x.max()) <= 1
    assert float(result.objective.min()) > 1e-8


def test_several_uploads_show_more_than_one_behind_noise() -> None:
    model = small_vit()
    task = Task(model, example=X[0])
    defense = make_defense("dp-gaussian:magnitude=1e-4,clip=none")
    uploads = [Observation.of(task, defense.protect(task, X, Y, seed=seed)) for seed in range(3)]
    one, all_ = (float((April().reconstruct(seen).x - X).square().mean()) for seen in (uploads[0], uploads))
    assert all_ < one


def test_uploads_without_a_gradient_are_grey_and_leave_the_others_as_they_are() -> None:
    observation = observe(small_vit())
    gradient = observation.gradient.clone()
    gradient[0] = 0
    result = April().reconstruct(replace(observation, gradient=gradient))
    assert not bool(result.diverged.any())
    assert bool((result.x[0] == 0.5).all()) and float((result.x[1:] - X[1:]).abs().max()) < 1e-3


def test_a_last_layer_of_zeros_does_not_hide_the_structure() -> None:
    model = small_vit()
    nn.init.zeros_(model.head.weight)
    April().check(Task(model, example=X[0]))
    assert bool((April().reconstruct(observe(model)).x == 0.5).all())


class Smoothed(UserViT):
    """Averages neighbouring pixels in front of the patch embedding."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.avg_pool2d(x, 3, stride=1, padding=1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MLP(input_shape=(3, SIDE, SIDE)), "model = 'body': expected a first layer on patches of the image"),
        (LeNet(input_shape=(3, SIDE, SIDE)), "model = 'body.0': expected a first layer on patches"),
        (Smoothed(), "model = 'stem': expected a first layer on patches of the image"),
        (
            UserViT(positions="fixed"),
            "model = 'stem': no trainable position embedding is added to its output",
        ),
    ],
)
def test_models_of_another_structure_are_one_line(model: nn.Module, message: str) -> None:
    with pytest.raises(DataError) as caught:
        April().check(Task(model, example=X[0]))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_batches_of_several_images_are_one_line() -> None:
    task = Task(small_vit(), example=X[0])
    update = make_defense("none").protect(task, X[:2].view(1, 2, 3, SIDE, SIDE), Y[:2].view(1, 2))
    with pytest.raises(DataError, match=r"^batch = 2: expected 1: of more images april sees only the sum"):
        April().reconstruct(Observation.of(task, update))


def test_noise_that_hides_everything_leaves_grey_and_not_black() -> None:
    """Noise in the tokens' gradients would pull least squares to zero, which is worse than no attack."""
    draws = torch.Generator().manual_seed(0)
    matrix, target = (torch.randn(4, 60, n, generator=draws, dtype=torch.float64) for n in (12, 9))
    guess = torch.full((12, 9), 0.5, dtype=torch.float64)
    found = solve_noisy(matrix, target, guess, mean_square=0.3)
    plain = torch.linalg.lstsq(matrix, target).solution
    assert float((found - 0.5).square().mean()) < 0.05
    assert float((plain - 0.5).square().mean()) > 0.2
