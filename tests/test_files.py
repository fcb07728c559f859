"""Files are written atomically."""

from pathlib import Path

import pytest

from refiner.errors import DataError
from refiner.files import write_atomically


def test_folders_are_made_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.txt"
    assert write_atomically(target, b"one") == target
    assert write_atomically(str(target), b"two").read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


def test_a_path_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file/c\.txt: can't be written"):
        write_atomically(tmp_path / "file" / "c.txt", b"one")
