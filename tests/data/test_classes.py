"""Sub-folders as classes: which folders have them, and in which order."""

from pathlib import Path

import pytest

from refiner.data import folder_classes


def made(folder: Path, *places: str) -> list[Path]:
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).touch()
    return sorted(Path(place) for place in places)


def test_names_are_sorted_and_deeper_folders_belong_to_the_first(tmp_path: Path) -> None:
    files = made(tmp_path, "b/1.png", "a/x/2.png", "a/1.png", "C/1.png")
    (tmp_path / "d").mkdir()
    (tmp_path / ".git").mkdir()
    told = folder_classes(tmp_path, files)
    assert told is not None
    # An empty class keeps its number, as a model trained on all of them has it.
    assert told[0] == ("C", "a", "b", "d")
    assert dict(zip(map(str, files), told[1].tolist(), strict=True)) == {
        "C/1.png": 0,
        "a/1.png": 1,
        "a/x/2.png": 1,
        "b/1.png": 2,
    }


@pytest.mark.parametrize(
    "places", [("1.png", "2.png"), ("all/1.png", "all/2.png"), ("a/1.png", "b/1.png", "1.png")]
)
def test_folders_without_classes(places: tuple[str, ...], tmp_path: Path) -> None:
    assert folder_classes(tmp_path, made(tmp_path, *places)) is None
