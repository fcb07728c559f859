"""Folders that `save_to_disk` of Hugging Face `datasets` wrote, in its layout: Arrow streams and JSON."""

import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import load_data, load_train_and_test
from refiner.data import parquet as module
from refiner.errors import DataError, RefinerError

Pixels = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _parquet_extra(missing: Callable[[str], NoReturn]) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        missing("pyarrow")


def encoded(image: Pixels) -> dict[str, object]:
    stream = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def save_to_disk(
    folder: Path, pixels: Pixels, labels: list[int], shards: int = 1, column: str = "image"
) -> None:
    """What `Dataset.save_to_disk` writes: Arrow streams, `state.json` and `dataset_info.json`."""
    import pyarrow as arrow

    folder.mkdir(parents=True)
    features = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}, column: {"_type": "Image"}}
    names = [f"data-{n:05}-of-{shards:05}.arrow" for n in range(shards)]
    for part, name in enumerate(names):
        rows = range(part * len(labels) // shards, (part + 1) * len(labels) // shards)
        table = arrow.table({column: [encoded(pixels[i]) for i in rows], "label": [labels[i] for i in rows]})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        with (
            arrow.OSFile(str(folder / name), "wb") as sink,
            arrow.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None, "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


@pytest.mark.parametrize("kind", ["", "arrow:"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_dataset(kind: str, shards: int, tmp_path: Path, sample_pixels: Pixels) -> None:
    save_to_disk(tmp_path / "set", sample_pixels[:7], [0, 1, 2, 0, 1, 1, 1], shards)
    data = load_data(f"{kind}{tmp_path / 'set'}")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:7]))
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 1, 1] and data.class_names == ("cat", "dog", "emu")
    assert data.split == "all"
    assert load_data(f"{kind}{tmp_path / 'set'}", size=16).images.shape == (7, 3, 16, 16)


def test_splits_of_a_saved_dictionary(tmp_path: Path, sample_pixels: Pixels) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save_to_disk(tmp_path / "set" / "train", sample_pixels[:4], [0, 1, 2, 0], column="img")
    save_to_disk(tmp_path / "set" / "test", sample_pixels[4:6], [1, 2], column="img")
    train, test = load_train_and_test(str(tmp_path / "set"))
    assert (train.split, len(train), test.split, len(test)) == ("train", 4, "test", 2)
    assert torch.equal(test.images, torch.from_numpy(sample_pixels[4:6]))
    with pytest.raises(RefinerError, match="split = 'val': expected one of 'train', 'test'"):
        load_data(str(tmp_path / "set"), "val")


def test_a_folder_that_datasets_5_2_0_wrote() -> None:
    """By `DatasetDict.save_to_disk` with `num_shards={"train": 2, "test": 1}`; the test split is reversed."""
    folder = Path(__file__).parent / "saved_by_datasets"
    pixels = torch.from_numpy(np.arange(6 * 8 * 8 * 3).reshape(6, 8, 8, 3) * 7 % 256).permute(0, 3, 1, 2)
    train, test = load_train_and_test(f"arrow:{folder}")
    assert torch.equal(train.images, pixels[:4].byte()) and train.labels.tolist() == [0, 1, 0, 1]
    assert torch.equal(test.images, pixels[[5, 4]].byte()) and test.labels.tolist() == [1, 0]
    assert train.class_names == ("cat", "dog") and load_data(str(folder)).split == "train"


def test_damaged_folders_are_one_line_errors(tmp_path: Path, sample_pixels: Pixels) -> None:
    folder = tmp_path / "set"
    save_to_disk(folder, sample_pixels[:2], [0, 1])
    (file,) = folder.glob("*.arrow")
    content, state = file.read_bytes(), (folder / "state.json").read_text()
    for damaged in (content[: len(content) // 2], b"", b"PAR1" + content):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"can't be read \(|contains no rows") as caught:
            load_data(f"arrow:{folder}")
        assert "\n" not in str(caught.value)
    file.unlink()
    with pytest.raises(DataError, match=r"arrow: no such file$"):
        load_data(f"arrow:{folder}")
    for text, message in (
        ("{", "can't be read"),
        ('{"_data_files": []}', "names no files"),
        ("[]", "can't be"),
    ):
        (folder / "state.json").write_text(text)
        with pytest.raises(DataError, match=message):
            load_data(f"arrow:{folder}")
    # A list of files can't point out of its folder.
    (folder / "state.json").write_text(state.replace("data-", "../../etc/data-"))
    with pytest.raises(DataError, match=r"set/data-00000-of-00001\.arrow: no such file$"):
        load_data(f"arrow:{folder}")
    with pytest.raises(DataError, match="expected a folder that save_to_disk wrote"):
        load_data(f"arrow:{tmp_path}")


def test_without_pyarrow_the_error_has_the_install_line(
    tmp_path: Path, sample_pixels: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to_disk(tmp_path / "set", sample_pixels[:2], [0, 1])

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(DataError, match=r"^arrow: needs pyarrow: pip install 'refiner-fl\[parquet\]'$"):
        load_data(str(tmp_path / "set"))
