"""Augmented images carry the noise of their original."""

import secrets
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import refiner
from refiner import NoisyDataset, Refiner
from refiner.core import Task
from refiner.data import load_sample
from refiner.errors import DataError
from refiner.models import MLP

pytestmark = pytest.mark.hostile

SAMPLE = load_sample()
PAIRS = list(zip(SAMPLE.images[:16], SAMPLE.labels[:16].tolist(), strict=True))


def crop_and_flip(image: Tensor) -> Tensor:
    padded = nn.functional.pad(image, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2,)).tolist()
    cropped = padded[:, top : top + 32, left : left + 32]
    return cropped.flip(-1) if torch.rand(()) < 0.5 else cropped


def test_the_noise_is_cropped_and_mirrored_with_the_image() -> None:
    defense = Refiner()
    for index in range(8):
        image, noisy, label = NoisyDataset(PAIRS, defense, crop_and_flip)[index]
        noise = defense.noisy(SAMPLE.images[index : index + 1])[0] - SAMPLE.images[index]
        # Every augmentation of the noise is tried; the one that was drawn fits, for image and noise alike.
        padded = [nn.functional.pad(each, (4, 4, 4, 4)) for each in (SAMPLE.images[index], noise)]
        fits = [
            all(
                torch.allclose(each.flip(-1) if flip else each, expected, atol=1e-5)
                for each, expected in zip(
                    (part[:, top : top + 32, left : left + 32] for part in padded),
                    (image, noisy - image),
                    strict=True,
                )
            )
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
        ]
        assert any(fits) and label == PAIRS[index][1]


def test_the_average_over_many_copies_keeps_the_noise() -> None:
    """With noise of its own for every copy it averages out: the attack that this class prevents."""
    defense, image = Refiner(), SAMPLE.images[0]
    copies = [image.roll(shift, -1) for shift in range(24)]
    own = torch.stack([defense.noisy(copy[None])[0].roll(-shift, -1) for shift, copy in enumerate(copies)])
    noisy = defense.noisy(image[None])[0]
    carried = torch.stack([noisy.roll(shift, -1).roll(-shift, -1) for shift in range(24)])
    errors = [float((each.mean(0) - image).square().mean().sqrt()) for each in (own, carried)]
    assert errors[0] < 0.5 * errors[1]


def test_a_model_is_trained_on_augmented_images() -> None:
    model, defense = MLP(hidden=8), Refiner()
    state, loss = defense.init_state(), nn.functional.cross_entropy
    loader: DataLoader[Any] = DataLoader(NoisyDataset(PAIRS, defense, crop_and_flip), batch_size=16)
    for x, noisy, y in loader:
        update = refiner.backward(model, loss, x, y, defense, state=state, noisy=noisy).update
        assert update.samples == 16
    task = Task(model, example=torch.zeros(1, 3, 32, 32))
    never = Refiner(search="never")
    x, noisy, y = next(iter(DataLoader(NoisyDataset(PAIRS, never, crop_and_flip), batch_size=4)))
    protection = never.protection(task, x, y, noisy=noisy)
    assert protection.robust is not None and torch.equal(protection.robust[0], noisy)


def test_images_transforms_and_noise_that_do_not_fit_raise() -> None:
    arrays: Any = [(SAMPLE.images[0].numpy(), 1)]
    with pytest.raises(DataError, match=r"^image = .*expected a float tensor \[C, H, W\]"):
        NoisyDataset(arrays, Refiner())[0]
    other_randomness = NoisyDataset(PAIRS, Refiner(), lambda image: image.roll(secrets.randbelow(10**6), -1))
    with pytest.raises(DataError, match="expected random numbers of Python, NumPy or PyTorch"):
        for _ in range(20):
            other_randomness._repeatable = False
            other_randomness[0]
    x, y = SAMPLE.images[:4], SAMPLE.labels[:4]
    task = Task(MLP(hidden=8), example=x)
    with pytest.raises(DataError, match=r"^noisy: too little noise"):
        Refiner().protect(task, x, y, noisy=x)
    with pytest.raises(DataError, match=r"^noisy = .*expected inputs like x"):
        Refiner().protect(task, x, y, noisy=x[:2])
    with pytest.raises(DataError, match=r"^noisy: none adds no noise to inputs"):
        refiner.NoDefense().protect(task, x, y, noisy=x)


def test_copies_with_the_same_id_and_noise_of_their_own_are_warned_about() -> None:
    x, y, ids = SAMPLE.images[:4], SAMPLE.labels[:4], torch.arange(4)
    task, defense = Task(MLP(hidden=8), example=x), Refiner()
    defense.protect(task, x, y, ids=ids)
    defense.protect(task, x, y, ids=ids)
    with pytest.warns(UserWarning, match="augmented copies get noise of their own"):
        defense.protect(task, x.flip(-1), y, ids=ids)
