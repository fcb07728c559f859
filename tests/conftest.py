"""Shared fixtures: real data and a browser where they are there, fixed seeds, few threads."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import settings
from numpy.typing import NDArray

from refiner.core import noise
from refiner.data import DATASETS, image_grid
from refiner.data.catalogue import ALIASES, find_splits
from refiner.data.readers import cifar
from refiner.data.search_path import data_folders

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

settings.register_profile("refiner", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("refiner")
# Workers share the cores: more threads than cores is many times slower. So do the processes that they start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


_SECRETS = random.Random(0)


def pytest_configure(config: pytest.Config) -> None:
    """Draw secrets from a seeded source, not from the operating system: what passes once passes again."""
    patch = pytest.MonkeyPatch()
    patch.setattr(noise, "token_bytes", _SECRETS.randbytes)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Every test has secrets of its own, also in fixtures that it makes for others."""
    _SECRETS.seed(item.nodeid)


def _missing(what: str) -> NoReturn:
    """Skip, or fail where everything is required: REFINER_REQUIRE_ALL=1."""
    if os.environ.get("REFINER_REQUIRE_ALL") == "1":
        pytest.fail(f"{what} is missing, and REFINER_REQUIRE_ALL=1", pytrace=False)
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """`missing("what")` skips a test, or fails it where everything is required."""
    return _missing


def _decode_once(
    decode: Callable[[Path | bytes, str], NDArray[np.uint8]], folders: list[Path]
) -> Callable[[Path | bytes, str], NDArray[np.uint8]]:
    """`decode_image`, but once for each file of these folders: 10,000 images take half a second."""
    decoded: dict[str, NDArray[np.uint8]] = {}

    def decode_image(source: Path | bytes, name: str) -> NDArray[np.uint8]:
        if Path(name).parent not in folders:
            return decode(source, name)
        if name not in decoded:
            decoded[name] = decode(source, name)
            decoded[name].flags.writeable = False  # all tests share it
        return decoded[name]

    return decode_image


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Callable[[str], Path]]:
    """`data_dir("cifar100")` or `data_dir("lfw_labels.npz")`: the folder with that dataset or file.

    The folders are those of REFINER_DATA, else ../shared/data beside the checkout. From then on a process
    decodes each of their image grids once.
    """
    folders = data_folders() or [Path(__file__).parents[2] / "shared" / "data"]
    located: dict[str, Path] = {}

    def contains(folder: Path, name: str) -> bool:
        dataset = ALIASES.get(name, name)
        if dataset in DATASETS:
            return folder.is_dir() and find_splits(dataset, folder) is not None
        return (folder / name).is_file()

    def find(name: str) -> Path:
        if name not in located:
            folder = next((folder for folder in folders if contains(folder, name)), None)
            located[name] = folder if folder is not None else _missing(name)
        return located[name]

    with pytest.MonkeyPatch.context() as patch:
        for module in (image_grid, cifar):
            patch.setattr(module, "decode_image", _decode_once(module.decode_image, folders))
        yield find


@pytest.fixture(autouse=True)
def _no_data_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests name the folder of their data: the datasets of whoever runs them must not change a result."""
    monkeypatch.delenv("REFINER_DATA", raising=False)


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """A headless Chromium of the system."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        _missing("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Every test starts from the same draws."""
    torch.manual_seed(0)
    np.random.seed(0)
