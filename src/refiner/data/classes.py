"""The classes of an image folder: one for each of its sub-folders."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from refiner.checks import wrong
from refiner.errors import DataError


def subfolder_names(*folders: Path) -> tuple[str, ...]:
    """The names of the sub-folders of all these folders, sorted, without hidden ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train/dog", "train/cat", "test/fox", "test/cat"):
    ...         (Path(folder) / name).mkdir(parents=True)
    ...     subfolder_names(Path(folder) / "train", Path(folder) / "test")
    ('cat', 'dog', 'fox')
    """
    entries = (entry for folder in folders for entry in folder.iterdir())
    return tuple(sorted({entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."}))


def folder_classes(
    folder: Path, files: Sequence[Path], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], Tensor] | None:
    """The class names of an image folder, and the class of each file.

    Args:
        folder: The folder; each of its sub-folders is a class.
        files: Image files, relative to `folder`.
        names: The classes in the order of their numbers; the sorted names of the sub-folders if left out.

    Returns:
        The class names and the labels int64 [N], or None if there are no classes: an image is in the folder
        itself, or there are fewer than two sub-folders.

    Raises:
        DataError: If a sub-folder is not one of `names`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("dog", "cat"):
    ...         (Path(folder) / name).mkdir()
    ...     folder_classes(Path(folder), [Path("cat/1.png"), Path("dog/1.png"), Path("dog/2.png")])
    (('cat', 'dog'), tensor([0, 1, 1]))
    """
    subfolders = subfolder_names(folder)
    classes = subfolders if names is None else tuple(names)
    for name in subfolders:
        if name not in classes:
            listed = ", ".join(classes)
            raise DataError(
                f"{folder / name}: not one of the classes {listed[:80]}{'…' * (len(listed) > 80)}",
                field="classes",
                value=name,
                expected=f"one of {listed}",
            )
    if len(classes) < 2 or any(len(file.parts) == 1 for file in files):
        return None
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, torch.tensor([numbers[file.parts[0]] for file in files])


def validate_class_names(classes: object) -> tuple[str, ...]:
    """A setting `classes` as a tuple of names; raises if it is not a list of two or more different ones.

    >>> validate_class_names(["cat", "cat"])
    Traceback (most recent call last):
    refiner.errors.SettingError: classes = ['cat', 'cat']: expected two or more different names
    """
    if isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes):
        names = tuple(str(name) for name in classes)
        if len(names) >= 2 and len(set(names)) == len(names):
            return names
    raise wrong("classes", classes, "two or more different names")
