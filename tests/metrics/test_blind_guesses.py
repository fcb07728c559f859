"""Blind guesses: closed forms, real images, and metrics of either direction."""

import pytest
import torch
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import METRICS, best_guesses, blind_guess, psnr
from refiner.metrics.blind_guesses import GUESSES, guess_images

IMAGES = load_sample().images


def test_the_images_of_each_guess() -> None:
    public, original = IMAGES[20:40], IMAGES[:20]
    images = guess_images(original, public)
    assert tuple(images) == GUESSES
    assert all(image.shape == original.shape for image in images.values())
    assert images["grey"].unique().tolist() == [0.5]
    torch.testing.assert_close(images["mean image"][7], public.mean(0))
    assert images["own colour"].var((2, 3)).max() == 0
    torch.testing.assert_close(images["own colour"][7, :, 3, 4], original[7].mean((1, 2)))


def test_scores_match_closed_forms() -> None:
    """Half of each image is black, half white: grey and its own colour differ by 0.5 from every pixel."""
    original = torch.zeros(2, 1, 16, 16)
    original[..., :8] = 1
    guess = blind_guess(original, public=torch.full((3, 1, 16, 16), 0.1), metric="mse")
    for name, expected in (("grey", 0.25), ("own colour", 0.25), ("mean image", (0.81 + 0.01) / 2)):
        torch.testing.assert_close(guess.scores[name], torch.full((2,), expected))
    assert guess.best.tolist() == [0.25, 0.25]


def test_scores_on_real_images() -> None:
    """CIFAR-10: 12.4, 12.5 and 14.1 dB, and a third of the images at 15 dB or more."""
    guess = blind_guess(IMAGES[:100], IMAGES[100:])
    means = {name: float(score.mean()) for name, score in guess.scores.items()}
    assert means == pytest.approx({"grey": 12.4, "mean image": 12.5, "own colour": 14.1}, abs=0.4)
    assert 0.2 < (guess.best >= 15).float().mean() < 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_the_best_guess_is_the_closest_one(metric: str) -> None:
    original, public = IMAGES[:10], IMAGES[10:20]
    guess = blind_guess(original, public, metric)
    chosen = METRICS[metric]
    for victim in range(10):
        scores = {name: float(score[victim]) for name, score in guess.scores.items()}
        best = max(scores.values()) if chosen.higher_is_closer else min(scores.values())
        assert float(guess.best[victim]) == best == scores[guess.winner[victim]]
    assert guess.beaten_by(chosen.function(original, original)).all()
    assert not guess.beaten_by(guess.best).any()
    assert not guess.beaten_by(chosen.function(guess_images(original, public)["grey"], original)).any()


def test_best_guesses_are_the_images_with_the_highest_psnr() -> None:
    original, public = IMAGES[:30], IMAGES[30:]
    guess, images = blind_guess(original, public), best_guesses(original, public)
    assert len(set(guess.winner)) > 1
    torch.testing.assert_close(psnr(images, original), guess.best)
    by_name = guess_images(original, public)
    for index, name in enumerate(guess.winner):
        assert torch.equal(images[index], by_name[name][index])


def test_the_default_metric_is_psnr() -> None:
    original, public = IMAGES[:4], IMAGES[10:20]
    guess = blind_guess(original, public)
    assert guess.metric == "psnr"
    torch.testing.assert_close(guess.scores["grey"], psnr(torch.full_like(original, 0.5), original))


@pytest.mark.parametrize("public", [torch.zeros(2, 1, 32, 32), torch.zeros(2, 3, 28, 28)])
def test_public_images_of_another_shape_raise(public: Tensor) -> None:
    with pytest.raises(DataError) as caught:
        blind_guess(IMAGES, public)
    shape = list(public.shape[1:])
    assert str(caught.value) == (f"public: images of shape {shape}, expected [3, 32, 32] like the originals")


def test_invalid_input_raises() -> None:
    with pytest.raises(DataError, match="public: NaN or infinity in 2 of 2 images"):
        blind_guess(IMAGES, torch.full((2, 3, 32, 32), torch.nan))
    with pytest.raises(
        SettingError, match="metric = 'noise': expected one of 'mse', 'psnr', 'ssim', 'lpips'"
    ):
        blind_guess(IMAGES, IMAGES, "noise")
    with pytest.raises(DataError, match=r"scores: shape \[3\], expected \[200\]"):
        blind_guess(IMAGES, IMAGES).beaten_by(torch.zeros(3))
