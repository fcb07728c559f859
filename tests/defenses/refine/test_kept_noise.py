"""The noise of a `Refiner`: its own for every setting, from the statistics of the file as it was."""

from pathlib import Path

import torch

from refiner import Refiner
from refiner.data import load_sample
from refiner.defenses.refine.kept_noise import noise_for
from refiner.shaped_noise import NaturalNoise


def test_settings_of_one_secret_do_not_share_their_noise(tmp_path: Path) -> None:
    x, secret = load_sample().images[:8], bytes(range(32))
    bundled, file = NaturalNoise.bundled(), tmp_path / "doubled.safetensors"
    NaturalNoise(2 * bundled.covariance, bundled.mean).save(file)
    others = {
        "alpha": Refiner(secret=secret, alpha=2.0),
        "white": Refiner(secret=secret, white=0.0),
        "statistics": Refiner(secret=secret, statistics=str(file)),
        "start": Refiner(secret=secret, start="centred"),
        "blend": Refiner(secret=secret, start="blend", alpha=0.5),
    }
    whole = bundled.with_white(Refiner().white)
    draws = whole.whiten(Refiner(secret=secret).noisy(x) - x).flatten()
    for name, other in others.items():
        different = whole.whiten(other.noisy(x) - x).flatten()
        assert abs(float(torch.corrcoef(torch.stack([draws, different]))[0, 1])) < 0.03, name
    same = Refiner.light(secret=secret, search="always", alpha=3)
    assert torch.equal(Refiner(secret=secret).noisy(x), same.noisy(x))


def test_statistics_are_those_of_the_file_when_the_refiner_was_made(tmp_path: Path) -> None:
    x, file = load_sample().images[:2], tmp_path / "noise.safetensors"
    bundled = NaturalNoise.bundled()
    bundled.save(file)
    before = Refiner(secret=bytes(32), statistics=str(file))
    NaturalNoise(4 * bundled.covariance, bundled.mean).save(file)
    after = Refiner(secret=bytes(32), statistics=str(file))
    assert torch.equal(before.noisy(x), Refiner(secret=bytes(32)).noisy(x))
    assert float((after.noisy(x) - x).std()) > 1.1 * float((before.noisy(x) - x).std())


def test_the_guarantee_says_how_far_apart_images_are_under_the_whole_noise(tmp_path: Path) -> None:
    default, shaped = Refiner(search="never").guarantee(), Refiner(search="never", white=0.0).guarantee()
    assert "0.33·d-Gaussian-DP" in default and "about 12 apart" in default
    assert "about 78 apart" in shaped
    small = NaturalNoise.bundled().for_shape((3, 16, 16))
    small.save(tmp_path / "small.safetensors")
    fitted = Refiner(search="never", white=0.0, statistics=str(tmp_path / "small.safetensors"))
    assert "about 39 apart" in fitted.guarantee()
    assert Refiner().guarantee().startswith("none")


def test_noise_is_made_once_for_the_shape_and_the_white_part() -> None:
    bundled, cpu = NaturalNoise.bundled(), torch.device("cpu")
    assert noise_for(bundled, (3, 32, 32), cpu, 0.6) is noise_for(bundled, (3, 32, 32), cpu, 0.6)
    larger = noise_for(bundled, (3, 40, 40), cpu, 0.6)
    assert larger.shape == (3, 40, 40)
    expected = bundled.for_shape((3, 40, 40)).with_white(0.6)
    assert torch.equal(larger.covariance, expected.covariance)
