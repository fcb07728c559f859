"""Images by name, without labels: for commands that only look at images."""

import os
from collections.abc import Iterable

from torch import Tensor

from refiner.data.data_name import SAMPLE, is_named, own_path, qualified_name
from refiner.data.images import read_folder, read_images
from refiner.data.load import load_data
from refiner.data.npz import load_npz
from refiner.data.sample import load_sample
from refiner.data.user_data import choose_split_folder


def load_images(
    name: str,
    *,
    size: int | None = None,
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> Tensor:
    """The images of any source that `load_data` takes, and of sources without labels.

    Args:
        name: As for `load_data`; also one image, a folder without class folders, an `.npz` without labels.
        size: Resizes images of your own to this side.
        root: As for `load_data`.
        limit: The most images that are read of a dataset or of data with labels.

    Returns:
        float32 `[N, C, H, W]` in 0..1; of data with splits those of `train`, or of the first that exists.

    Raises:
        DataError: There are no readable images, or they differ in size and `size` is not given.

    >>> load_images("sample").shape
    torch.Size([200, 3, 32, 32])
    """
    name = qualified_name(name)
    if name == SAMPLE and size is None and root is None:
        return load_sample().images[:limit]
    if name == SAMPLE or is_named(name) or root is not None:
        return load_data(name, size=size, root=root, limit=limit).images.float() / 255
    kind, path = own_path(name)
    if kind == "folder" and path.is_dir():
        return read_folder(choose_split_folder(path)[0], size)[0][:limit]
    if kind == "image" or (kind == "npz" and has_plain_images(load_npz(path))):
        return read_images(path, size)[:limit]
    return load_data(name, size=size, limit=limit).images.float() / 255


def has_plain_images(arrays: Iterable[str]) -> bool:
    """Whether the arrays of an `.npz` are images without splits, which need no labels.

    >>> has_plain_images(["x"]), has_plain_images(["train_images"])
    (True, False)
    """
    return not any(name.endswith("_images") for name in arrays)
