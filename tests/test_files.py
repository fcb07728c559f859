"""A file is whole or not there."""

from pathlib import Path

import pytest

from refiner.errors import DataError
from refiner.files import write_whole


def test_folders_are_made_and_old_content_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.txt"
    assert write_whole(target, b"one") == target
    assert write_whole(str(target), b"two").read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file/c\.txt: can't be written"):
        write_whole(tmp_path / "file" / "c.txt", b"one")
