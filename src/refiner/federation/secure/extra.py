"""Imports of the optional packages of the `secure` extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from refiner.errors import RefinerError

_PACKAGES = {"Crypto": "pycryptodome"}


@contextmanager
def secure_extra() -> Iterator[None]:
    """Turn a failed import of an optional package into an error with the install line."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "cryptography").split(".")[0]
        package = _PACKAGES.get(module, module)
        raise RefinerError(f"secure aggregation needs {package}: pip install 'refiner-fl[secure]'") from None
