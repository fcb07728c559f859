"""The classes of an image folder: one for each of its sub-folders."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from refiner.checks import wrong
from refiner.errors import DataError


def class_names(*folders: Path) -> tuple[str, ...]:
    """The names of the sub-folders of all of these, sorted; what is hidden is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train/dog", "train/cat", "test/fox", "test/cat"):
    ...         (Path(folder) / name).mkdir(parents=True)
    ...     class_names(Path(folder) / "train", Path(folder) / "test")
    ('cat', 'dog', 'fox')
    """
    inside = (inner for folder in folders for inner in folder.iterdir())
    return tuple(sorted({inner.name for inner in inside if inner.is_dir() and inner.name[0] != "."}))


def folder_classes(
    folder: Path, files: Sequence[Path], names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], Tensor] | None:
    """The sub-folders' names, sorted, and the place of each file's own among them, int64 [N].

    With `names` these are the classes, in their order; a sub-folder that is none of them is an error. None if
    there are no classes: an image lies in the folder itself, or there are fewer than two of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("dog", "cat"):
    ...         (Path(folder) / name).mkdir()
    ...     folder_classes(Path(folder), [Path("cat/1.png"), Path("dog/1.png"), Path("dog/2.png")])
    (('cat', 'dog'), tensor([0, 1, 1]))
    """
    held = class_names(folder)
    known = held if names is None else tuple(names)
    for name in held:
        if name not in known:
            told = ", ".join(known)
            raise DataError(f"{folder / name}: not one of the classes {told[:80]}{'…' * (len(told) > 80)}")
    if len(known) < 2 or any(len(file.parts) == 1 for file in files):
        return None
    place = {name: number for number, name in enumerate(known)}
    return known, torch.tensor([place[file.parts[0]] for file in files])


def checked_classes(classes: object) -> tuple[str, ...]:
    """The names of classes as a setting has them.

    >>> checked_classes(["cat", "cat"])
    Traceback (most recent call last):
    refiner.errors.SettingError: classes = ['cat', 'cat']: expected two or more names, no two alike
    """
    if isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes):
        names = tuple(str(name) for name in classes)
        if len(names) >= 2 and len(set(names)) == len(names):
            return names
    raise wrong("classes", classes, "two or more names, no two alike")
