"""The blind guess: closed forms, real images, either direction of a metric."""

import pytest
import torch
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import MEASURES, best_guesses, blind_guess, psnr
from refiner.metrics.blind import GUESSES, guesses

PICTURES = load_sample().images


def test_the_guesses_are_what_they_are_called() -> None:
    public, original = PICTURES[20:40], PICTURES[:20]
    found = guesses(original, public)
    assert tuple(found) == GUESSES
    assert all(guess.shape == original.shape for guess in found.values())
    assert found["grey"].unique().tolist() == [0.5]
    torch.testing.assert_close(found["mean image"][7], public.mean(0))
    assert found["own colour"].var((2, 3)).max() == 0
    torch.testing.assert_close(found["own colour"][7, :, 3, 4], original[7].mean((1, 2)))


def test_in_closed_form() -> None:
    """Half of each image is black, half white: its own colour and grey are 0.5 away from every pixel."""
    original = torch.zeros(2, 1, 16, 16)
    original[..., :8] = 1
    found = blind_guess(original, public=torch.full((3, 1, 16, 16), 0.1), metric="mse")
    for name, expected in (("grey", 0.25), ("own colour", 0.25), ("mean image", (0.81 + 0.01) / 2)):
        torch.testing.assert_close(found.scores[name], torch.full((2,), expected))
    assert found.best.tolist() == [0.25, 0.25]


def test_on_real_images() -> None:
    """What the README says of CIFAR-10: 12.4, 12.5 and 14.1 dB; and a third of its images passes 15 dB."""
    found = blind_guess(PICTURES[:100], PICTURES[100:])
    means = {name: float(score.mean()) for name, score in found.scores.items()}
    assert means == pytest.approx({"grey": 12.4, "mean image": 12.5, "own colour": 14.1}, abs=0.4)
    assert 0.2 < (found.best >= 15).float().mean() < 0.5


@pytest.mark.parametrize("metric", MEASURES)
def test_the_best_is_the_nearest(metric: str) -> None:
    original, public = PICTURES[:10], PICTURES[10:20]
    found = blind_guess(original, public, metric)
    measure = MEASURES[metric]
    for victim in range(10):
        scores = {name: float(score[victim]) for name, score in found.scores.items()}
        best = max(scores.values()) if measure.higher_is_nearer else min(scores.values())
        assert float(found.best[victim]) == best == scores[found.winner[victim]]
    assert found.beaten_by(measure.compare(original, original)).all()
    assert not found.beaten_by(found.best).any()
    assert not found.beaten_by(measure.compare(guesses(original, public)["grey"], original)).any()


def test_the_best_guesses_as_images() -> None:
    original, public = PICTURES[:30], PICTURES[30:]
    found, images = blind_guess(original, public), best_guesses(original, public)
    assert len(set(found.winner)) > 1
    torch.testing.assert_close(psnr(images, original), found.best)
    made = guesses(original, public)
    for place, name in enumerate(found.winner):
        assert torch.equal(images[place], made[name][place])


def test_the_metric_is_psnr_unless_told() -> None:
    original, public = PICTURES[:4], PICTURES[10:20]
    found = blind_guess(original, public)
    assert found.metric == "psnr"
    torch.testing.assert_close(found.scores["grey"], psnr(torch.full_like(original, 0.5), original))


@pytest.mark.parametrize("public", [torch.zeros(2, 1, 32, 32), torch.zeros(2, 3, 28, 28)])
def test_other_public_images_are_refused(public: Tensor) -> None:
    with pytest.raises(DataError) as caught:
        blind_guess(PICTURES, public)
    shape = list(public.shape[1:])
    assert str(caught.value) == (
        f"public: images of shape {shape}, expected [3, 32, 32] as the originals have"
    )


def test_bad_input() -> None:
    with pytest.raises(DataError, match="public: NaN or infinity in 2 of 2 images"):
        blind_guess(PICTURES, torch.full((2, 3, 32, 32), torch.nan))
    with pytest.raises(
        SettingError, match="metric = 'noise': expected one of 'mse', 'psnr', 'ssim', 'lpips'"
    ):
        blind_guess(PICTURES, PICTURES, "noise")
    with pytest.raises(DataError, match=r"scores: shape \[3\], expected \[200\]"):
        blind_guess(PICTURES, PICTURES).beaten_by(torch.zeros(3))
