"""Only one process holds a lock, and the lock ends with that process."""

import subprocess
import sys
from pathlib import Path

import pytest

from refiner.data.lock import exclusive_lock
from refiner.errors import DataError

HOLD_SCRIPT = """
import sys
from pathlib import Path
from refiner.data.lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "cifar10"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_second_process_is_rejected_until_the_first_ends(tmp_path: Path) -> None:
    file = tmp_path / "deep" / ".lock"
    command = [sys.executable, "-c", HOLD_SCRIPT, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        with (
            pytest.raises(DataError, match="cifar10: another process is fetching it"),
            exclusive_lock(file, "cifar10"),
        ):
            raise AssertionError
        process.kill()
    with exclusive_lock(file, "cifar10"), exclusive_lock(tmp_path / "other", "svhn"):
        pass


def test_a_lock_that_can_not_be_created_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with (
        pytest.raises(DataError, match=r"\.lock: can't be written"),
        exclusive_lock(tmp_path / "file" / ".lock", "a"),
    ):
        pass
