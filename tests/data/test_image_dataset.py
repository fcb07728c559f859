"""Image datasets are validated, and give batches of floats in any order."""

from typing import Any

import pytest
import torch

from refiner.data import ImageDataset, load_data
from refiner.errors import DataError, SettingError


@pytest.fixture
def numbers() -> ImageDataset:
    """Eleven images; image n has the value n in every pixel."""
    images = torch.arange(11, dtype=torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 3, 2, 2)
    return ImageDataset(images, torch.arange(11), 11, "numbers", "all")


@pytest.mark.parametrize("size", [1, 4, 11, 50])
def test_batches_contain_all_samples_in_order(numbers: ImageDataset, size: int) -> None:
    batches = list(numbers.batches(size))
    assert [len(y) for _, y in batches[:-1]] == [size] * (len(batches) - 1)
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    assert x.dtype == torch.float32 and torch.equal(x * 255, numbers.images.float())
    assert y.tolist() == list(range(11))


def test_seed_shuffles_the_samples(numbers: ImageDataset) -> None:
    orders = [torch.cat([y for _, y in numbers.batches(3, seed=seed)]).tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(11))
    for x, y in numbers.batches(4, seed=5):
        assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), y)


def test_indices_select_samples(numbers: ImageDataset) -> None:
    chosen = torch.tensor([7, 2, 9])
    assert [y.tolist() for _, y in numbers.batches(2, indices=chosen)] == [[7, 2], [9]]
    (_, y), *_ = numbers.batches(3, indices=chosen, seed=0)
    assert sorted(y.tolist()) == [2, 7, 9]
    for wrong in (torch.tensor([11]), torch.tensor([-1]), torch.tensor([0.0]), torch.tensor([[0]])):
        with pytest.raises(DataError, match=r"indices: .* in \[0, 10\]"):
            numbers.batches(1, indices=wrong)


def test_settings_are_checked_before_the_first_batch(numbers: ImageDataset) -> None:
    with pytest.raises(SettingError, match="size = 0"):
        numbers.batches(0)
    with pytest.raises(SettingError, match="seed = -1"):
        numbers.batches(1, seed=-1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": torch.zeros(2, 3, 4, 4)}, r"a b: images are torch\.float32 \[2, 3, 4, 4\]"),
        ({"images": torch.zeros(2, 1, 4, 4).byte()}, r"expected torch\.uint8 \[N, 3, H, W\]"),
        ({"labels": torch.tensor([0])}, r"labels are torch\.int64 \[1\], expected torch\.int64 \[2\]"),
        ({"labels": torch.tensor([0, 3])}, r"labels in \[0, 3\], expected \[0, 2\]"),
        ({"labels": torch.tensor([-1, 0])}, r"labels in \[-1, 0\], expected \[0, 2\]"),
        ({"class_names": ("one",)}, "1 class names, expected 3"),
        ({"images": torch.zeros(0, 3, 4, 4).byte(), "labels": torch.zeros(0).long()}, "no images"),
        ({"classes": 0}, "classes = 0"),
        ({"attributes": {"odd": torch.tensor([1.0, 0.0])}}, r"attribute 'odd' = float32 tensor of shape"),
        ({"attributes": {"odd": torch.tensor([0, -2])}}, r"each ≥ 0, or -1 for unknown"),
    ],
)
def test_invalid_fields_raise(changed: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "labels": torch.tensor([0, 1]),
        "classes": 3,
        "name": "a",
        "split": "b",
    }
    ImageDataset(**fields)
    with pytest.raises((DataError, SettingError), match=message):
        ImageDataset(**{**fields, **changed})


def test_dataset_is_frozen() -> None:
    with pytest.raises(AttributeError):
        load_data("sample").classes = 3  # type: ignore[misc]
