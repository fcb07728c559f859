"""What an attacker may see, and the sheet of samples."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from refiner.data import load_dataset, load_sample, read_sheet
from refiner.errors import SettingError
from refiner.generator import Generator, load_public, public, samples, write_samples


@pytest.mark.parametrize(
    ("name", "limit", "asked", "classes"),
    [
        ("cifar10", None, 40_000, 10),
        ("cifar10", 7, 7, 10),
        ("cifar10", 40_000, 40_000, 10),
        ("cifar100", None, None, 100),
    ],
)
def test_victims_are_left_out(
    name: str, limit: int | None, asked: int | None, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, ...]] = []

    def load(name: str, split: str, root: Path, limit: int | None) -> tuple[Tensor, Tensor]:
        told.append((name, split, limit))
        return torch.zeros(1), torch.zeros(1)

    monkeypatch.setattr(public, "load_dataset", load)
    assert load_public(name, "folder", limit)[2] == classes
    assert told == [(name, "train", asked)]


def test_the_real_data_end_before_the_first_victim(data_dir: Callable[[str], Path]) -> None:
    images, labels, _ = load_public("cifar10", data_dir("cifar10"))
    assert images.shape == (40_000, 3, 32, 32) and labels.shape == (40_000,)
    assert torch.equal(images[:5], load_dataset("cifar10", "train", data_dir("cifar10"), limit=5)[0])
    # The bundled sample is of the victims.
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
def test_what_is_asked_wrongly_is_one_line(name: str, limit: int | None, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_public(name, "folder", limit)
    assert str(caught.value) == message


def test_a_sheet_has_a_row_for_each_class(tmp_path: Path) -> None:
    generator = Generator(latent=6, classes=3, width=4).eval()
    made = samples(generator, each=4, seed=1)
    assert made.shape == (12, 3, 32, 32) and made.dtype == torch.uint8
    assert torch.equal(samples(generator, each=4, seed=1, batch=5), made)
    assert not torch.equal(samples(generator, each=4, seed=2), made)
    path = write_samples(tmp_path / "sheet.png", generator, each=4, seed=1)
    assert torch.equal(read_sheet(path, count=12, size=32, columns=4), made)
    y = torch.tensor([2])
    z = generator.draw(torch.arange(3).repeat_interleave(4), 1)[8:9]
    assert torch.equal((255 * generator(z, y)).round().byte()[0], made[8])
    with pytest.raises(SettingError, match=r"^each = 0: expected an integer ≥ 1$"):
        samples(generator, each=0)
