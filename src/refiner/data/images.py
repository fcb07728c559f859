"""A user's images from a file, a folder or an `.npz`, as one tensor in 0..1."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from refiner.checks import integer
from refiner.data.image_decoding import decode_concatenated, decode_image
from refiner.data.npz import load_npz
from refiner.errors import DataError
from refiner.files import file_error

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_ARRAY_NAMES = ("images", "x")


def load_image(path: str | os.PathLike[str], size: int | None = None) -> Tensor:
    """One image file as a tensor.

    Args:
        path: The image file.
        size: Scales the shorter side to this and crops the centre to size × size.

    Returns:
        float32 [3, H, W] in 0..1.

    Raises:
        DataError: If the file does not exist or is not a readable image.

    >>> load_image("absent.png")
    Traceback (most recent call last):
    refiner.errors.DataError: absent.png: no such file
    """
    size = None if size is None else integer("size", size, 1)
    return resize_and_crop(_to_unit_range(decode_image(Path(path), str(path))[None]), size)[0]


def read_images(path: str | os.PathLike[str], size: int | None = None) -> Tensor:
    """The images of a folder, an image file or an `.npz` as one tensor.

    Args:
        path: A folder (see `read_folder`), an image file, or an `.npz` with `images` or `x` ([N, H, W] or
            [N, H, W, C], uint8 or floats in 0..1), or with encoded images as `blob` and `offsets`.
        size: Scales the shorter side of each image to this and crops the centre to size × size.

    Returns:
        float32 [N, C, H, W] in 0..1.

    Raises:
        DataError: If there are no readable images, or they differ in size and `size` is not given.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder) / "a.npz", images=np.full((2, 8, 8, 3), 255, np.uint8))
    ...     read_images(Path(folder) / "a.npz", size=4).shape
    torch.Size([2, 3, 4, 4])
    """
    source = Path(path)
    size = None if size is None else integer("size", size, 1)
    if source.is_dir():
        return read_folder(source, size)[0]
    if not source.exists():
        raise file_error(source, "no such file or folder", "an existing file or folder")
    if source.suffix.lower() == ".npz":
        return resize_and_crop(_to_unit_range(images_of_npz(load_npz(source), source)), size)
    return load_image(source, size)[None]


def read_folder(folder: Path, size: int | None = None) -> tuple[Tensor, list[Path]]:
    """The images in a folder and its sub-folders, and their files.

    Hidden files are ignored. Files that can't be read are skipped, with one warning for all of them.

    Args:
        folder: The folder.
        size: Scales the shorter side of each image to this and crops the centre to size × size.

    Returns:
        Images float32 [N, 3, H, W] in 0..1 in the sorted order of their files, and the file of each, relative
        to the folder.

    Raises:
        DataError: If there are no readable images, or they differ in size and `size` is not given.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_folder(Path(folder))
    Traceback (most recent call last):
    refiner.errors.DataError: ...: no images, expected files ending in .png, .jpg, ...
    """
    size = None if size is None else integer("size", size, 1)
    files = image_files(folder)
    images: Tensor | None = None
    readable: list[Path] = []
    errors: list[DataError] = []
    for file in files:
        try:
            pixels = decode_image(folder / file, str(folder / file))
        except DataError as error:
            errors.append(error)
            continue
        image = resize_and_crop(_to_unit_range(pixels[None]), size)[0]
        if images is None:
            images = image.new_empty(len(files), *image.shape)
        if image.shape != images.shape[1:]:
            height, width = images.shape[2:]
            raise DataError(
                f"{folder / file}: {image.shape[2]}×{image.shape[1]} pixels, expected {width}×{height} "
                f"as in {readable[0].name}; set size to make them equal",
                field="size",
                value=None,  # size was not given
                expected=f"{width}×{height}",
            )
        images[len(readable)] = image
        readable.append(file)
    if images is None:
        raise file_error(
            folder, f"none of {len(files)} images can be read; first error: {errors[0]}", "readable images"
        )
    if errors:
        message = f"{folder}: {len(errors)} of {len(files)} images skipped; first error: {errors[0]}"
        warnings.warn(message, stacklevel=2)
    return images[: len(readable)], readable


def image_files(folder: Path) -> list[Path]:
    """The image files in a folder and its sub-folders by their suffix, sorted, relative to the folder."""
    candidates = sorted(
        file.relative_to(folder) for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES
    )
    files = [
        file
        for file in candidates
        if not any(part.startswith(".") for part in file.parts) and (folder / file).is_file()
    ]
    if not files:
        raise file_error(
            folder,
            f"no images, expected files ending in {', '.join(SUFFIXES)}",
            f"files ending in {', '.join(SUFFIXES)}",
        )
    return files


def resize_and_crop(images: Tensor, size: int | None) -> Tensor:
    """Float images [..., H, W] in 0..1 with the shorter side scaled to `size` and the centre cropped.

    >>> resize_and_crop(torch.zeros(1, 3, 20, 60), 10).shape
    torch.Size([1, 3, 10, 10])
    """
    height, width = images.shape[-2:]
    if size is None or (height, width) == (size, size):
        return images
    scale = size / min(height, width)
    shape = (max(size, round(height * scale)), max(size, round(width * scale)))
    scaled = interpolate(images, shape, mode="bilinear", antialias=True, align_corners=False)
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return scaled[..., top : top + size, left : left + size].clamp(0, 1).contiguous()


def images_of_npz(
    arrays: Mapping[str, NDArray[Any]], path: Path, names: Sequence[str] = _ARRAY_NAMES
) -> NDArray[Any]:
    """The images of an `.npz` as [N, H, W, C], uint8 or floats in 0..1: the first array of `names` it has.

    >>> images_of_npz({"x": np.zeros((2, 4, 4), np.uint8)}, Path("a.npz")).shape
    (2, 4, 4, 1)
    """
    if "blob" in arrays and "offsets" in arrays:
        return decode_concatenated(arrays["blob"], arrays["offsets"], str(path))
    name = next((name for name in names if name in arrays), None)
    if name is None:
        contents = ", ".join(sorted(arrays)) or "no arrays"
        raise file_error(
            path,
            f"contains {contents}, expected 'images', 'x', or 'blob' and 'offsets'",
            "'images', 'x', or 'blob' and 'offsets'",
        )
    images = arrays[name]
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype.kind not in "uf":
        raise DataError(
            f"{path}: {name} is {images.dtype} {list(arrays[name].shape)}, expected uint8 or float "
            "[N, H, W] or [N, H, W, C] with 1 or 3 channels",
            field=name,
            value=arrays[name],
            expected="uint8 or float [N, H, W] or [N, H, W, C] with 1 or 3 channels",
        )
    if images.size == 0:
        raise DataError(f"{path}: {name} is empty", field=name, value=images, expected="at least one image")
    if images.dtype.kind == "u":
        if images.dtype != np.uint8:
            raise DataError(
                f"{path}: {name} is {images.dtype}, expected uint8 or floats in [0, 1]",
                field=name,
                value=images,
                expected="uint8 or floats in [0, 1]",
            )
        return images
    if not np.isfinite(images).all():
        raise DataError(
            f"{path}: {name} contains NaN or infinity, expected numbers in [0, 1]",
            field=name,
            value=images,
            expected="numbers in [0, 1]",
        )
    if images.min() < 0 or images.max() > 1:
        raise DataError(
            f"{path}: {name} is in [{images.min():g}, {images.max():g}], expected [0, 1]",
            field=name,
            value=images,
            expected="numbers in [0, 1]",
        )
    return images.astype(np.float32)


def _to_unit_range(images: NDArray[Any]) -> Tensor:
    """uint8 or float [N, H, W, C] as float32 [N, C, H, W] in 0..1."""
    tensor = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor.float()
