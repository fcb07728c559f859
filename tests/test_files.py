"""Files are written in one step, with the permissions that they need."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refiner.errors import DataError
from refiner.files import create_private, locked, write_atomically


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folders_are_made_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.txt"
    assert write_atomically(target, b"one") == target
    assert write_atomically(str(target), b"two").read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


def test_a_path_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file/c\.txt: can't be written"):
        write_atomically(tmp_path / "file" / "c.txt", b"one")


@pytest.mark.hostile
def test_private_files_are_for_their_owner_and_stricter_permissions_are_kept(tmp_path: Path) -> None:
    secret, result = tmp_path / "secret", tmp_path / "result"
    assert mode_of(write_atomically(secret, b"one", private=True)) == 0o600
    result.write_bytes(b"old")
    result.chmod(0o644)
    assert mode_of(write_atomically(result, b"new", private=True)) == 0o600
    result.chmod(0o400)
    assert mode_of(write_atomically(result, b"newer")) == 0o400


@pytest.mark.hostile
def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(DataError, match=f"{name}: not a regular file"):
            write_atomically(tmp_path / name, b"one")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new"
    with pytest.raises(DataError, match=r"can't be written \(File name too long\)"):
        write_atomically(tmp_path / ("a" * 300), b"one")


@pytest.mark.hostile
def test_of_secrets_created_at_once_one_wins_for_all(tmp_path: Path) -> None:
    for round in range(20):
        path = tmp_path / str(round)

        def create(number: int, path: Path = path) -> bytes:
            create_private(path, bytes([number]) * 32)
            return path.read_bytes()

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(create, range(8)))) == 1
        assert mode_of(path) == 0o600
    assert len(list(tmp_path.iterdir())) == 20


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    with locked(tmp_path / "out", ValueError("busy")):
        with pytest.raises(ValueError, match="busy"), locked(tmp_path / "out", ValueError("busy")):
            pass
        assert list((tmp_path / "out").iterdir()) == []
    with locked(tmp_path / "out", ValueError("busy")):
        pass
