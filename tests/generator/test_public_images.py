"""Public training images without the victims, and the grid of generated samples."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.data import ImageDataset, load_data, load_sample, read_image_grid
from refiner.errors import SettingError
from refiner.generator import Generator, load_public_images, public_images, sample_images, write_sample_grid


@pytest.mark.parametrize(
    ("name", "limit", "loaded", "classes"),
    [
        ("cifar10", None, 40_000, 10),
        ("cifar10", 7, 7, 10),
        ("cifar10", 40_000, 40_000, 10),
        ("cifar100", None, None, 100),
    ],
)
def test_victims_are_never_loaded(
    name: str, limit: int | None, loaded: int | None, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []

    def load(name: str, split: str, root: Path, limit: int | None) -> ImageDataset:
        calls.append((name, split, limit))
        return ImageDataset(
            torch.zeros(1, 3, 1, 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), 1, name, split
        )

    monkeypatch.setattr(public_images, "load_data", load)
    assert load_public_images(name, "folder", limit)[2] == classes
    assert calls == [(name, "train", loaded)]


def test_real_public_images_contain_no_victim(data_dir: Callable[[str], Path]) -> None:
    images, labels, _ = load_public_images("cifar10", data_dir("cifar10"))
    assert images.shape == (40_000, 3, 32, 32) and labels.shape == (40_000,)
    assert torch.equal(images[:5], load_data("cifar10", "train", root=data_dir("cifar10"), limit=5).images)
    # The bundled sample consists of victims.
    for victim in (load_sample().images[:10] * 255).round().to(torch.uint8):
        assert not (images[:, :, 16, 16:] == victim[:, 16, 16:]).flatten(1).all(1).any()


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("cifar10", 40_001, "limit = 40001: expected an integer in [1, 40000]"),
        ("cifar10", 0, "limit = 0: expected an integer in [1, 40000]"),
        ("svhn", 0, "limit = 0: expected an integer ≥ 1"),
        ("path", None, "dataset = 'path': expected one of 'cifar10', 'cifar100', 'svhn', 'ham10000'"),
    ],
)
def test_wrong_arguments_raise_one_line(name: str, limit: int | None, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_public_images(name, "folder", limit)
    assert str(caught.value) == message


def test_the_sample_grid_has_a_row_for_each_class(tmp_path: Path) -> None:
    generator = Generator(latent=6, classes=3, width=4).eval()
    samples = sample_images(generator, each=4, seed=1)
    assert samples.shape == (12, 3, 32, 32) and samples.dtype == torch.uint8
    assert torch.equal(sample_images(generator, each=4, seed=1, batch=5), samples)
    assert not torch.equal(sample_images(generator, each=4, seed=2), samples)
    path = write_sample_grid(tmp_path / "samples.png", generator, each=4, seed=1)
    assert torch.equal(read_image_grid(path, count=12, size=32, columns=4), samples)
    y = torch.tensor([2])
    z = generator.draw(torch.arange(3).repeat_interleave(4), 1)[8:9]
    assert torch.equal((255 * generator(z, y)).round().byte()[0], samples[8])
    with pytest.raises(SettingError, match=r"^each = 0: expected an integer ≥ 1$"):
        sample_images(generator, each=0)
