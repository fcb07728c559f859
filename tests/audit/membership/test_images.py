"""The images of a membership audit of LFW, where most people have one image."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from refiner.audit.membership.images import load_membership_images
from refiner.errors import RefinerError


def test_people_with_enough_images_have_members_non_members_and_public_images(
    data_dir: Callable[[str], Path],
) -> None:
    images = load_membership_images("lfw", root=data_dir("lfw"), victims=100, batch=4, seed=1)
    assert images.classes == 423 and images.source == "lfw, people with at least 5 images"
    assert images.x.shape == images.non_members.shape == (100, 4, 3, 32, 32)
    assert images.public is not None and len(images.public[1]) == 3000
    pixels = torch.cat([images.x.flatten(0, 1), images.non_members.flatten(0, 1), images.public[0]])
    assert len(torch.unique(pixels.flatten(1), dim=0)) == len(pixels)
    # Everybody whose images are candidates may have others in public.
    assert torch.isin(images.y, images.public[1]).float().mean() > 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"least_images": 900}, r"^least_images = 900: expected an integer in \[3, 530\]"),
        ({"least_images": 2}, r"^least_images = 2: expected an integer in \[3, 530\]"),
        ({"data": "cifar10", "least_images": 5}, r"^least_images = 5: can be given only with lfw$"),
        ({"size": 16}, r"^size = 16: can be given only with your own images"),
        ({"victims": 900}, r"^victims = 900: expected at most 211"),
    ],
)
def test_wrong_settings_are_one_line(
    change: dict[str, object], message: str, data_dir: Callable[[str], Path]
) -> None:
    settings: dict[str, Any] = {"data": "lfw", "root": data_dir("lfw"), "victims": 2, "batch": 4} | change
    with pytest.raises(RefinerError, match=message):
        load_membership_images(**settings)
