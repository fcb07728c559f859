"""The classes of an image folder: one for each of its sub-folders."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def folder_classes(folder: Path, files: Sequence[Path]) -> tuple[tuple[str, ...], Tensor] | None:
    """The sub-folders' names, sorted, and the place of each file's own among them, int64 [N].

    None if they name no classes: a picture lies in the folder itself, or there are fewer than two of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("dog", "cat"):
    ...         (Path(folder) / name).mkdir()
    ...     folder_classes(Path(folder), [Path("cat/1.png"), Path("dog/1.png"), Path("dog/2.png")])
    (('cat', 'dog'), tensor([0, 1, 1]))
    """
    names = sorted(inner.name for inner in folder.iterdir() if inner.is_dir() and inner.name[0] != ".")
    if len(names) < 2 or any(len(file.parts) == 1 for file in files):
        return None
    return tuple(names), torch.tensor([names.index(file.parts[0]) for file in files])
