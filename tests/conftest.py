"""Shared fixtures: real data and a browser where they are there, fixed seeds, few threads."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import settings
from numpy.typing import NDArray

from refiner.data import datasets, sheet
from refiner.data.datasets import DATASETS

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

settings.register_profile("refiner", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("refiner")
# Workers share the cores: more threads than cores is many times slower. So do the processes that they start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


def _missing(what: str) -> NoReturn:
    """Skip, or fail where everything is required: REFINER_REQUIRE_ALL=1."""
    if os.environ.get("REFINER_REQUIRE_ALL") == "1":
        pytest.fail(f"{what} is missing, and REFINER_REQUIRE_ALL=1", pytrace=False)
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """`missing("what")` skips a test, or fails it where everything is required."""
    return _missing


def _once(call: Callable[..., NDArray[np.uint8]], folders: list[Path]) -> Callable[..., NDArray[np.uint8]]:
    """`decode` or `decode_blob`, but once for each file of these folders: a sheet takes half a second."""
    known: dict[tuple[object, ...], NDArray[np.uint8]] = {}

    def decoded(*given: Any) -> NDArray[np.uint8]:
        # Of its arguments the name of the file tells which it is, and a limit how much of it.
        key = tuple(each for each in given if not isinstance(each, np.ndarray))
        if not any(isinstance(each, str) and Path(each).parent in folders for each in key):
            return call(*given)
        if key not in known:
            known[key] = call(*given)
            known[key].flags.writeable = False  # the next one must find it as it is
        return known[key]

    return decoded


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Callable[[str], Path]]:
    """`data_dir("cifar100")` or `data_dir("lfw_labels.npz")`: the folder that holds that data set or file.

    Folders come from REFINER_DATA (a list as PATH is), else from ../shared/data beside the checkout.
    From then on a process decodes each of their sheets once.
    """
    beside = Path(__file__).parents[2] / "shared" / "data"
    listed = os.environ.get("REFINER_DATA", "")
    folders = [Path(folder) for folder in listed.split(os.pathsep) if folder] or [beside]

    def find(name: str) -> Path:
        if name in DATASETS:
            splits = DATASETS[name].splits.values()
            wanted = {file for split in splits for file in (*split.files, split.labels)}
        else:
            wanted = {name}
        for folder in folders:
            if all((folder / file).is_file() for file in wanted):
                return folder
        _missing(name)

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((datasets, "decode"), (datasets, "decode_blob"), (sheet, "decode")):
            patch.setattr(module, name, _once(getattr(module, name), folders))
        yield find


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
