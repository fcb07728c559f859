"""One process at a time; a lock ends with its process."""

import subprocess
import sys
from pathlib import Path

import pytest

from refiner.data.lock import alone
from refiner.errors import DataError

HOLD = """
import sys
from pathlib import Path
from refiner.data.lock import alone
with alone(Path(sys.argv[1]), "cifar10"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    file = tmp_path / "deep" / ".lock"
    command = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(DataError, match="cifar10: another process is getting it"), alone(file, "cifar10"):
            raise AssertionError
        process.kill()
    with alone(file, "cifar10"), alone(tmp_path / "other", "svhn"):
        pass


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"\.lock: can't be written"), alone(tmp_path / "file" / ".lock", "a"):
        pass
