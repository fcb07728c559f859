"""Sub-folders as classes: their order, and folders without classes."""

from pathlib import Path

import pytest

from refiner.data import folder_classes


def touch(folder: Path, *places: str) -> list[Path]:
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).touch()
    return sorted(Path(place) for place in places)


def test_names_are_sorted_and_nested_folders_belong_to_their_top_folder(tmp_path: Path) -> None:
    files = touch(tmp_path, "b/1.png", "a/x/2.png", "a/1.png", "C/1.png")
    (tmp_path / "d").mkdir()
    (tmp_path / ".git").mkdir()
    classes = folder_classes(tmp_path, files)
    assert classes is not None
    # An empty class keeps its number, so that the labels fit a model trained on all classes.
    assert classes[0] == ("C", "a", "b", "d")
    assert dict(zip(map(str, files), classes[1].tolist(), strict=True)) == {
        "C/1.png": 0,
        "a/1.png": 1,
        "a/x/2.png": 1,
        "b/1.png": 2,
    }


@pytest.mark.parametrize(
    "places", [("1.png", "2.png"), ("all/1.png", "all/2.png"), ("a/1.png", "b/1.png", "1.png")]
)
def test_folders_without_classes(places: tuple[str, ...], tmp_path: Path) -> None:
    assert folder_classes(tmp_path, touch(tmp_path, *places)) is None
