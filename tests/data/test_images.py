"""A user's images: each kind of source, and the errors of each."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import load_image, load_sample, read_folder, read_images
from refiner.errors import DataError, RefinerError, SettingError


@pytest.fixture
def pixels() -> np.ndarray[Any, Any]:
    """Six real images, uint8 [6, 32, 32, 3]."""
    images = load_sample().images[:6] * 255
    return images.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def test_folder_is_searched_recursively_and_sorted(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> None:
    places = ["a/2.png", "a/10.png", "b.PNG", "c/d/e.png", "z.webp", "y.bmp"]
    for place, image in zip(places, pixels, strict=True):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / place, lossless=True)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden.png").write_text("not an image")
    (tmp_path / ".thumbnails").mkdir()
    Image.fromarray(pixels[0]).save(tmp_path / ".thumbnails" / "a.png")
    got, files = read_folder(tmp_path)
    assert [file.as_posix() for file in files] == sorted(places, key=Path)
    assert torch.equal(got, read_images(tmp_path))
    order = sorted(range(6), key=lambda index: tmp_path / places[index])
    assert got.dtype == torch.float32
    assert torch.equal(
        (got * 255).round().to(torch.uint8).permute(0, 2, 3, 1), torch.from_numpy(pixels[order])
    )


@pytest.mark.parametrize("size", [None, 16])
def test_unreadable_files_are_skipped_with_a_warning(
    tmp_path: Path, pixels: np.ndarray[Any, Any], size: int | None
) -> None:
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "0.png").write_text("not an image")
    (tmp_path / "3.png").write_bytes((tmp_path / "3.png").read_bytes()[:80])
    with pytest.warns(
        UserWarning, match=r"2 of 6 images skipped; first error: .*0\.png: not a readable image"
    ) as caught:
        got, files = read_folder(tmp_path, size)
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert [file.name for file in files] == ["1.png", "2.png", "4.png", "5.png"]
    expected = [read_images(tmp_path / file, size)[0] for file in files]
    assert torch.equal(got, torch.stack(expected))


def test_one_file_is_one_image(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> None:
    Image.fromarray(pixels[0]).save(tmp_path / "one.png")
    assert read_images(tmp_path / "one.png").shape == (1, 3, 32, 32)
    assert torch.equal(read_images(str(tmp_path / "one.png"))[0], load_image(tmp_path / "one.png"))
    assert torch.equal(load_image(tmp_path / "one.png"), load_sample().images[0])


def test_size_scales_the_shorter_side_and_crops_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255  # only the middle third is white
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2).copy()).save(tmp_path / "tall.png")
    got = read_images(tmp_path, size=10)
    assert got.shape == (2, 3, 10, 10)
    assert got[..., 2:-2, 2:-2].min() == 1
    assert got.min() >= 0 and got.max() <= 1


@pytest.mark.parametrize("key", ["images", "x"])
def test_an_npz_of_bytes(tmp_path: Path, pixels: np.ndarray[Any, Any], key: str) -> None:
    np.savez(tmp_path / "a.npz", **{key: pixels})
    assert torch.equal(read_images(tmp_path / "a.npz"), load_sample().images[:6])
    np.savez(tmp_path / "grey.npz", **{key: pixels[..., 0]})
    assert torch.equal(read_images(tmp_path / "grey.npz"), load_sample().images[:6, :1])


def test_an_npz_of_floats(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> None:
    np.savez(tmp_path / "a.npz", images=pixels / 255)
    assert torch.allclose(read_images(tmp_path / "a.npz"), load_sample().images[:6])


def _encode(image: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_npz_of_encoded_images(tmp_path: Path, pixels: np.ndarray[Any, Any]) -> None:
    encoded = [_encode(image) for image in pixels]
    offsets = np.cumsum([0, *map(len, encoded)])
    np.savez(tmp_path / "a.npz", blob=np.frombuffer(b"".join(encoded), np.uint8), offsets=offsets)
    assert torch.equal(read_images(tmp_path / "a.npz"), load_sample().images[:6])


def test_real_jpegs(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    with np.load(data_dir("tiny-imagenet") / "tiny_imagenet_val_jpegs.npz") as archive:
        offsets = archive["offsets"][:21]
        np.savez(tmp_path / "few.npz", blob=archive["blob"][: offsets[-1]], offsets=offsets)
    got = read_images(tmp_path / "few.npz", size=32)
    assert got.shape == (20, 3, 32, 32)
    assert 0.1 < got.mean() < 0.9 and got.std() > 0.1


def test_transparency_is_put_on_white_and_rotation_is_undone(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert load_image(tmp_path / "clear.png").min() == 1
    turned = Image.new("RGB", (8, 4))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert load_image(tmp_path / "turned.jpg").shape == (3, 8, 4)


def _bad_sources(folder: Path) -> dict[str, tuple[Path, str]]:
    """Name → (path, part of the error)."""
    good = np.zeros((2, 4, 4, 3), np.uint8)

    def npz(name: str, **arrays: np.ndarray[Any, Any]) -> Path:
        np.savez(folder / name, **arrays)
        return folder / name

    (folder / "empty").mkdir()
    (folder / "mixed").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "a.png").write_text("not an image")
    Image.new("RGB", (4, 4)).save(folder / "mixed" / "a.png")
    Image.new("RGB", (5, 4)).save(folder / "mixed" / "b.png")
    (folder / "text.png").write_text("not an image")
    (folder / "cut.png").write_bytes(_encode(np.zeros((64, 64, 3), np.uint8) + 7)[:60])
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(folder / "deep.png")
    (folder / "text.npz").write_text("not an archive")
    (folder / "zip.npz").write_bytes(b"PK\x03\x04 not an archive")
    np.savez(folder / "pickled.npz", images=np.array([{"a": 1}], dtype=object))
    nan = np.zeros((1, 4, 4, 3), np.float32)
    nan[0, 1, 2, 0] = np.nan
    return {
        "absent": (folder / "absent", "no such file or folder"),
        "empty folder": (folder / "empty", "no images"),
        "mixed sizes": (folder / "mixed", "5×4 pixels, expected 4×4 as in a.png; set size"),
        "no readable image": (folder / "broken", "none of 1 images can be read; first error: "),
        "text as png": (folder / "text.png", "not a readable image"),
        "cut png": (folder / "cut.png", "not a readable image"),
        "16 bits": (folder / "deep.png", "expected 8 bits per channel"),
        "text as npz": (folder / "text.npz", "not an .npz of plain arrays"),
        "broken zip": (folder / "zip.npz", "a broken .npz"),
        "pickle": (folder / "pickled.npz", "not an .npz of plain arrays"),
        "NaN": (npz("nan.npz", images=nan), "contains NaN or infinity"),
        "range": (npz("range.npz", images=nan[:, :1] + 3), "is in [3, 3], expected [0, 1]"),
        "no array": (npz("other.npz", pixels=good), "contains pixels, expected 'images'"),
        "nothing": (npz("none.npz"), "contains no arrays"),
        "no images": (npz("zero.npz", images=good[:0]), "is empty"),
        "channels": (npz("five.npz", images=np.zeros((2, 4, 4, 5), np.uint8)), "with 1 or 3 channels"),
        "integers": (npz("int.npz", images=good.astype(np.int64)), "expected uint8 or float"),
        "uint16": (npz("wide.npz", images=good.astype(np.uint16)), "expected uint8 or floats"),
        "offsets": (npz("off.npz", blob=good.ravel(), offsets=np.array([0, 5])), "offsets must increase"),
    }


def test_every_bad_source_raises_one_line(tmp_path: Path) -> None:
    for name, (path, expected) in _bad_sources(tmp_path).items():
        with pytest.raises(DataError) as caught:
            read_images(path)
        message = str(caught.value)
        assert expected in message, (name, message)
        assert "\n" not in message and str(tmp_path) in message, (name, message)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_bad_size_raises(tmp_path: Path, size: Any) -> None:
    with pytest.raises(SettingError, match="size = "):
        read_images(tmp_path, size=size)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_random_bytes_never_crash(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for head in (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"RIFF\x00\x00\x00\x00WEBP",
        b"BM",
        b"II*\x00",
    ):
        for length in (0, 1, 30, 500):
            (tmp_path / "a.png").write_bytes(head + generator.bytes(length))
            (tmp_path / "a.npz").write_bytes(head + generator.bytes(length))
            for file in ("a.png", "a.npz"):
                with pytest.raises(RefinerError):
                    read_images(tmp_path / file)


def test_the_record_of_the_sample_is_plain_json() -> None:
    file = Path(__file__).parents[2] / "src" / "refiner" / "assets" / "sample.json"
    assert set(json.loads(file.read_text())) == {"source", "class_names", "labels", "indices", "columns"}


@pytest.mark.hostile
def test_an_npz_that_expands_to_gigabytes_is_rejected(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((24_000, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match=r"bomb\.npz: .* that expand to 73\.7 MB, expected at most 100 times"):
        read_images(tmp_path / "bomb.npz")
