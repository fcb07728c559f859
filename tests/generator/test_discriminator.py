"""The discriminator: spectral norms, scores, and the augmentation of images."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from refiner.data import load_sample
from refiner.errors import SettingError
from refiner.generator import Discriminator
from refiner.generator.augmentation import random_flip, shift_and_cut_out
from refiner.generator.discriminator import SpectralNorm, spectral


def test_scores_depend_on_image_and_label() -> None:
    discriminator, images = Discriminator(width=8), load_sample().images[:4]
    scores = discriminator(images, torch.arange(4))
    assert scores.shape == (4,) and scores.dtype == torch.float32
    assert len(scores.unique()) == 4
    assert not torch.isclose(discriminator(images[:1], torch.tensor([5])), scores[:1])
    discriminator.eval()
    alone = torch.cat([discriminator(p[None], torch.tensor([i])) for i, p in enumerate(images)])
    torch.testing.assert_close(discriminator(images, torch.arange(4)), alone)


def test_every_weight_has_spectral_norm_one() -> None:
    discriminator = Discriminator(width=8)
    with torch.no_grad():
        for name, weight in discriminator.named_parameters():
            if name.endswith("original"):
                weight.mul_(5).add_(torch.randn_like(weight))
    parametrized = [m for m in discriminator.modules() if parametrize.is_parametrized(m)]
    assert len(parametrized) == 4 * 2 + 1 + 2
    for module in parametrized:
        for _ in range(100):
            weight = torch.as_tensor(module.weight).detach()
        assert torch.linalg.matrix_norm(weight.flatten(1), 2).item() == pytest.approx(1, abs=0.02)


def test_the_norm_is_estimated_in_training_mode_only() -> None:
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
def test_settings_out_of_range_raise(settings: dict[str, int]) -> None:
    (field,) = settings
    with pytest.raises(SettingError, match=rf"^{field} = 0: expected an integer ≥ 1$"):
        Discriminator(**settings)


def test_each_image_is_flipped_or_unchanged() -> None:
    images = load_sample().images[:16]
    augmented = random_flip(images, torch.Generator().manual_seed(0))
    flipped = [torch.equal(a, b.flip(-1)) for a, b in zip(augmented, images, strict=True)]
    unchanged = [torch.equal(a, b) for a, b in zip(augmented, images, strict=True)]
    assert all(a != b for a, b in zip(flipped, unchanged, strict=True))
    assert any(flipped) and any(unchanged)


def test_augmented_images_are_shifted_and_cut_out() -> None:
    count = 64
    ramp = (torch.arange(32)[:, None] * 32 + torch.arange(32)).float().add(1) / 2048 + 0.5
    images = ramp.expand(count, 3, 32, 32)
    augmented = shift_and_cut_out(images, torch.Generator().manual_seed(0))
    assert augmented.shape == images.shape and augmented.dtype == images.dtype
    shifts = set()
    for image in augmented[:, 0]:
        rows, columns = torch.nonzero(image != 0.5, as_tuple=True)
        sources = ((image[rows, columns] - 0.5) * 2048).round().long() - 1
        shift = torch.stack([sources // 32 - rows, sources % 32 - columns], 1).unique(dim=0)
        # All remaining pixels have the same shift.
        assert len(shift) == 1
        shifts.add(tuple(shift[0].tolist()))
        assert len(rows) < 32 * 32
    assert {abs(s) for pair in shifts for s in pair} == {0, 1, 2, 3, 4}
    assert len({float((p == 0.5).float().mean()) for p in augmented}) > 10


def test_gradients_pass_through_the_augmentation() -> None:
    images = load_sample().images[:4].clone().requires_grad_()
    augmented = shift_and_cut_out(images, torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(augmented.sum(), images)
    assert set(gradient.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < gradient.mean() < 1
