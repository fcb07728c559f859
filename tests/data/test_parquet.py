"""Images in Parquet files, where pyarrow is installed; the line that installs it where it is not."""

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

from refiner.data import open_data
from refiner.data import parquet as module
from refiner.errors import DataError

Pixels = np.ndarray[Any, Any]
needs_arrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is missing")


def encoded(pixels: Pixels) -> list[bytes]:
    found = []
    for image in pixels:
        stream = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(stream, "PNG")
        found.append(stream.getvalue())
    return found


def write(file: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    import pyarrow as arrow
    import pyarrow.parquet

    table = arrow.table(columns)
    if features:
        told = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": told})
    pyarrow.parquet.write_table(table, file, row_group_size=3)
    return file


@needs_arrow
@pytest.mark.parametrize("column", ["image", "img"])
@pytest.mark.parametrize("struct", [True, False])
def test_as_hugging_face_writes_them(
    column: str, struct: bool, tmp_path: Path, sample_pixels: Pixels
) -> None:
    held: list[Any] = encoded(sample_pixels[:7])
    if struct:
        held = [{"bytes": content, "path": "a.png"} for content in held]
    names = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}
    file = write(tmp_path / "a.parquet", {column: held, "label": [0, 1, 2, 0, 1, 1, 1]}, names)
    data = open_data(f"parquet:{file}")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:7]))
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 1, 1] and data.class_names == ("cat", "dog", "emu")
    assert open_data(f"parquet:{file}", size=16).images.shape == (7, 3, 16, 16)


@needs_arrow
def test_a_folder_of_shards(tmp_path: Path, sample_pixels: Pixels) -> None:
    held = encoded(sample_pixels[:6])
    for name, cut in (
        ("train-00000-of-00002", slice(0, 2)),
        ("train-00001-of-00002", slice(2, 4)),
        ("test-00000-of-00001", slice(4, 6)),
    ):
        write(tmp_path / f"{name}.parquet", {"image": held[cut], "label": [0, 1]})
    assert torch.equal(open_data(f"parquet:{tmp_path}", "train").images, torch.from_numpy(sample_pixels[:4]))
    assert len(open_data(f"parquet:{tmp_path}", "test")) == 2


@needs_arrow
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"sentence": ["a"], "label": [1]}, "holds sentence, label, expected a column 'image' or 'img'"),
        ({"image": [b"x"]}, "holds image, expected a column 'label'"),
        ({"image": [b"x"], "label": ["a"]}, "'label' is string, expected integers"),
        ({"image": [b"x"], "label": [None]}, "'label' is null, expected integers"),
        ({"image": ["x"], "label": [1]}, "row 0: 'image' holds no bytes of an image"),
        ({"image": [b"x"], "label": [1]}, "row 0: not an image that can be read"),
    ],
)
def test_other_tables_are_refused(columns: dict[str, Any], told: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=rf"a\.parquet.*{told}"):
        open_data(f"parquet:{file}")


@needs_arrow
def test_a_truncated_file_is_named(tmp_path: Path, sample_pixels: Pixels) -> None:
    file = write(tmp_path / "a.parquet", {"image": encoded(sample_pixels[:3]), "label": [0, 1, 2]})
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.parquet: can't be read \("):
        open_data(f"parquet:{file}")


@needs_arrow
def test_real_text_is_refused(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("sst2_dev.parquet")
    with pytest.raises(DataError, match="expected a column 'image' or 'img'"):
        open_data(f"parquet:{folder}/sst2_dev.parquet")


def test_without_pyarrow_the_install_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", absent)
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"parquet: needs pyarrow: pip install 'refiner\[parquet\]'"):
        open_data(f"parquet:{tmp_path}/a.parquet")
