"""Images in Parquet files; without pyarrow the error has the install line."""

import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import load_data
from refiner.data import parquet as module
from refiner.errors import DataError

Pixels = np.ndarray[Any, Any]
needs_arrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is missing")


def encoded(pixels: Pixels) -> list[bytes]:
    contents = []
    for image in pixels:
        stream = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(stream, "PNG")
        contents.append(stream.getvalue())
    return contents


def write(file: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    import pyarrow as arrow
    import pyarrow.parquet

    table = arrow.table(columns)
    if features:
        message = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": message})
    pyarrow.parquet.write_table(table, file, row_group_size=3)
    return file


@needs_arrow
@pytest.mark.parametrize("column", ["image", "img"])
@pytest.mark.parametrize("struct", [True, False])
def test_files_of_hugging_face(column: str, struct: bool, tmp_path: Path, sample_pixels: Pixels) -> None:
    images: list[Any] = encoded(sample_pixels[:7])
    if struct:
        images = [{"bytes": content, "path": "a.png"} for content in images]
    names = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}
    file = write(tmp_path / "a.parquet", {column: images, "label": [0, 1, 2, 0, 1, 1, 1]}, names)
    data = load_data(f"parquet:{file}")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:7]))
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 1, 1] and data.class_names == ("cat", "dog", "emu")
    assert load_data(f"parquet:{file}", size=16).images.shape == (7, 3, 16, 16)


@needs_arrow
def test_a_folder_of_shards(tmp_path: Path, sample_pixels: Pixels) -> None:
    images = encoded(sample_pixels[:6])
    for name, cut in (
        ("train-00000-of-00002", slice(0, 2)),
        ("train-00001-of-00002", slice(2, 4)),
        ("test-00000-of-00001", slice(4, 6)),
    ):
        write(tmp_path / f"{name}.parquet", {"image": images[cut], "label": [0, 1]})
    for split in ("train", None):
        data = load_data(f"parquet:{tmp_path}", split)
        assert data.split == "train" and torch.equal(data.images, torch.from_numpy(sample_pixels[:4]))
    assert len(load_data(f"parquet:{tmp_path}", "test")) == 2


@needs_arrow
@pytest.mark.parametrize(
    ("names", "split", "rows"),
    [
        (("test.parquet", "train.parquet"), "train", 1),
        (("extra-0.parquet", "train-0.parquet", "train-1.parquet"), "train", 2),
        (("test-0.parquet", "validation-0.parquet"), "validation", 1),
        (("cats-0.parquet", "dogs-0.parquet"), "all", 2),
        (("0000.parquet", "0001.parquet"), "all", 2),
    ],
)
def test_files_read_without_a_split(
    names: tuple[str, ...], split: str, rows: int, tmp_path: Path, sample_pixels: Pixels
) -> None:
    for name in names:
        write(tmp_path / name, {"image": encoded(sample_pixels[:1]), "label": [0]})
    data = load_data(f"parquet:{tmp_path}")
    assert (data.split, len(data)) == (split, rows)


@needs_arrow
def test_files_without_rows(tmp_path: Path, sample_pixels: Pixels) -> None:
    import pyarrow as arrow

    empty = {"image": arrow.array([], arrow.binary()), "label": arrow.array([], arrow.int64())}
    file = write(tmp_path / "train-0.parquet", empty)
    with pytest.raises(DataError) as caught:
        load_data(f"parquet:{file}")
    assert str(caught.value) == f"{file}: contains no rows"
    write(tmp_path / "train-1.parquet", {"image": [], "label": []})
    with pytest.raises(DataError) as caught:
        load_data(f"parquet:{tmp_path}")
    assert str(caught.value) == f"{tmp_path}: none of 2 files contains a row"
    # Some shards may be empty if others are not.
    write(tmp_path / "train-2.parquet", {"image": encoded(sample_pixels[:2]), "label": [0, 1]})
    assert len(load_data(f"parquet:{tmp_path}")) == 2


@needs_arrow
def test_label_out_of_range_raises_with_its_file(tmp_path: Path, sample_pixels: Pixels) -> None:
    images = encoded(sample_pixels[:2])
    write(tmp_path / "train-0.parquet", {"image": images, "label": [0, 1]})
    file = write(tmp_path / "train-1.parquet", {"image": images, "label": [0, 10**12]})
    with pytest.raises(DataError) as caught:
        load_data(f"parquet:{tmp_path}")
    assert str(caught.value) == f"{file}: labels = {10**12}: expected integers in [0, 32767]"


def test_a_folder_without_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}: no .parquet files"):
        load_data(f"parquet:{tmp_path}")


@needs_arrow
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"sentence": ["a"], "label": [1]},
            "has the columns sentence, label, expected a column 'image' or 'img'",
        ),
        ({"image": [b"x"]}, "has the columns image, expected a column 'label'"),
        ({"image": [b"x"], "label": ["a"]}, "'label' is string, expected integers"),
        ({"image": [b"x"], "label": [None]}, "'label' is null, expected integers"),
        ({"image": ["x"], "label": [1]}, "row 0: 'image' contains no encoded image"),
        ({"image": [b"x"], "label": [1]}, "row 0: not a readable image"),
    ],
)
def test_other_tables_raise(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=rf"a\.parquet.*{message}"):
        load_data(f"parquet:{file}")


@needs_arrow
def test_truncated_file_raises(tmp_path: Path, sample_pixels: Pixels) -> None:
    file = write(tmp_path / "a.parquet", {"image": encoded(sample_pixels[:3]), "label": [0, 1, 2]})
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.parquet: can't be read \("):
        load_data(f"parquet:{file}")


@needs_arrow
def test_table_of_text_raises(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("sst2_dev.parquet")
    with pytest.raises(DataError, match="expected a column 'image' or 'img'"):
        load_data(f"parquet:{folder}/sst2_dev.parquet")


def test_missing_pyarrow_raises_with_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", absent)
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"parquet: needs pyarrow: pip install 'refiner-fl\[parquet\]'"):
        load_data(f"parquet:{tmp_path}/a.parquet")
