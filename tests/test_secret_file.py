"""A client's secret file: created once and private; a damaged or readable one is refused."""

from pathlib import Path

import pytest

import refiner


def test_a_secret_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "client.secret"
    secret = refiner.load_secret(file)
    assert len(secret) == 32 and file.stat().st_mode & 0o777 == 0o600
    assert refiner.load_secret(str(file)) == secret != refiner.load_secret(tmp_path / "another")
    assert refiner.Refiner(secret=secret).secret == secret


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"", 0o600, "has 0 bytes, expected 32"),
        (bytes(33), 0o600, "has 33 bytes, expected 32"),
        (bytes(32), 0o640, "others can read .*; use chmod 600, or delete it to create a new one"),
    ],
)
def test_a_wrong_file_is_a_one_line_error(content: bytes, mode: int, message: str, tmp_path: Path) -> None:
    file = tmp_path / "client.secret"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(refiner.DataError, match=rf"^client\.secret: .*{message}$"):
        refiner.load_secret(file)
    assert file.read_bytes() == content


def test_a_folder_in_its_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(refiner.DataError, match="can't be read"):
        refiner.load_secret(tmp_path)
