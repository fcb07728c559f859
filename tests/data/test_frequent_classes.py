"""People with enough images, and what LFW's files say about them besides the name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from refiner.data import fetch_data, frequent_classes, load_data, verify_data, write_image_grid
from refiner.errors import DataError, SettingError

NAMES = ["Al_Gore_0001.jpg", "Al_Gore_0002.jpg", "Bo_Li_0001.jpg", "Cy_Ot_0001.jpg", "Cy_Ot_0002.jpg"]


def write_lfw(folder: Path, **arrays: object) -> Path:
    """Five images of three people as image grids."""
    for number in range(2):
        write_image_grid(folder / f"lfw_32_{number}.webp", torch.zeros(5, 3, 32, 32, dtype=torch.uint8))
    np.savez(folder / "lfw_labels.npz", names=np.array(NAMES), **arrays)
    return folder


def test_the_attribute_is_read_limited_and_cached(tmp_path: Path) -> None:
    gender = [1, -1, 1, 0, 0]
    folder = write_lfw(tmp_path, gender=np.array(gender, np.int8))
    data = load_data("lfw", root=folder)
    assert data.attribute("gender").tolist() == gender and data.attribute("gender").dtype == torch.int64
    assert load_data("lfw", root=folder, limit=2).attribute("gender").tolist() == gender[:2]
    place = fetch_data("lfw", folder)
    assert load_data("lfw").attribute("gender").tolist() == gender
    verify_data("lfw")
    np.save(place / "all" / "attribute-gender.npy", np.zeros(5, np.int64))
    with pytest.raises(DataError, match=r"attribute-gender\.npy does not have the SHA-256"):
        verify_data("lfw")
    people = frequent_classes(data, 2)
    assert people.labels.tolist() == [0, 0, 1, 1] and people.classes == 2
    assert people.attribute("gender").tolist() == [1, -1, 0, 0]


def test_an_attribute_that_is_absent_or_wrong_is_one_line(tmp_path: Path) -> None:
    data = load_data("lfw", root=write_lfw(tmp_path))
    with pytest.raises(DataError, match=r"^attribute = 'gender': lfw has no attributes in these files$"):
        data.attribute("gender")
    with pytest.raises(DataError, match="least = 3: expected at most 2, the most images of a class"):
        frequent_classes(data, 3)
    with pytest.raises(SettingError, match="most = 1: expected an integer ≥ 2"):
        frequent_classes(data, 2, 1)
    for wrong in (np.zeros(4, np.int8), np.zeros(5), np.full(5, -2)):
        with pytest.raises(DataError, match="array 'gender' has other values, expected 5 integers ≥ -1"):
            load_data("lfw", root=write_lfw(tmp_path, gender=wrong))


def test_real_people_with_twenty_images(data_dir: Callable[[str], Path]) -> None:
    data = load_data("lfw", root=data_dir("lfw_labels.npz"))
    assert data.attribute("gender").add(1).bincount().tolist() == [9, 2961, 10263]
    few = frequent_classes(data, 2, 4)
    assert few.classes == 1257 and int(few.labels.bincount().max()) == 4
    people = frequent_classes(data, 20)
    assert people.classes == 62 and len(people) == 3023
    # One gender for every person.
    pairs = torch.stack([people.labels, people.attribute("gender")], dim=1).unique(dim=0)
    assert len(pairs) == 62 and int((pairs[:, 1] == 0).sum()) == 12
