"""The discriminator: norms of its weights, its scores, and what an augmentation does to an image."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from refiner.data import load_sample
from refiner.errors import SettingError
from refiner.generator import Discriminator
from refiner.generator.augmentation import disturb, mirror
from refiner.generator.discriminator import SpectralNorm, spectral


def test_scores_depend_on_image_and_label() -> None:
    judge, images = Discriminator(width=8), load_sample().images[:4]
    scores = judge(images, torch.arange(4))
    assert scores.shape == (4,) and scores.dtype == torch.float32
    assert len(scores.unique()) == 4
    assert not torch.isclose(judge(images[:1], torch.tensor([5])), scores[:1])
    judge.eval()
    alone = torch.cat([judge(p[None], torch.tensor([i])) for i, p in enumerate(images)])
    torch.testing.assert_close(judge(images, torch.arange(4)), alone)


def test_every_weight_has_norm_one() -> None:
    judge = Discriminator(width=8)
    with torch.no_grad():
        for name, weight in judge.named_parameters():
            if name.endswith("original"):
                weight.mul_(5).add_(torch.randn_like(weight))
    normed = [m for m in judge.modules() if parametrize.is_parametrized(m)]
    assert len(normed) == 4 * 2 + 1 + 2
    for module in normed:
        for _ in range(100):
            weight = torch.as_tensor(module.weight).detach()
        assert torch.linalg.matrix_norm(weight.flatten(1), 2).item() == pytest.approx(1, abs=0.02)


def test_the_norm_follows_in_training_only() -> None:
    layer = spectral(nn.Linear(6, 5))
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(torch.randn(5, 6))  # type: ignore[union-attr]
    norm = next(m for m in layer.modules() if isinstance(m, SpectralNorm))
    before = norm.left.clone()
    layer.eval()
    assert torch.equal(torch.as_tensor(layer.weight), torch.as_tensor(layer.weight))
    assert torch.equal(norm.left, before)
    layer.train()
    torch.as_tensor(layer.weight)
    assert not torch.equal(norm.left, before)


@pytest.mark.parametrize("settings", [{"classes": 0}, {"width": 0}])
def test_wrong_settings_name_the_field(settings: dict[str, int]) -> None:
    (field,) = settings
    with pytest.raises(SettingError, match=rf"^{field} = 0: expected an integer ≥ 1$"):
        Discriminator(**settings)


def test_mirrored_or_not() -> None:
    images = load_sample().images[:16]
    seen = mirror(images, torch.Generator().manual_seed(0))
    turned = [torch.equal(a, b.flip(-1)) for a, b in zip(seen, images, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(seen, images, strict=True)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert any(turned) and any(kept)


def test_disturbed_images_are_moved_and_cut() -> None:
    count = 64
    ramp = (torch.arange(32)[:, None] * 32 + torch.arange(32)).float().add(1) / 2048 + 0.5
    images = ramp.expand(count, 3, 32, 32)
    seen = disturb(images, torch.Generator().manual_seed(0))
    assert seen.shape == images.shape and seen.dtype == images.dtype
    shifts = set()
    for image in seen[:, 0]:
        rows, columns = torch.nonzero(image != 0.5, as_tuple=True)
        places = ((image[rows, columns] - 0.5) * 2048).round().long() - 1
        moved = torch.stack([places // 32 - rows, places % 32 - columns], 1).unique(dim=0)
        # Whatever is left of an image has moved as one.
        assert len(moved) == 1
        shifts.add(tuple(moved[0].tolist()))
        assert len(rows) < 32 * 32
    assert {abs(s) for pair in shifts for s in pair} == {0, 1, 2, 3, 4}
    assert len({float((p == 0.5).float().mean()) for p in seen}) > 10


def test_the_slope_passes_where_the_image_stays() -> None:
    images = load_sample().images[:4].clone().requires_grad_()
    seen = disturb(images, torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad(seen.sum(), images)
    assert set(slope.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < slope.mean() < 1
