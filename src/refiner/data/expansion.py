"""Compressed files that would expand to far more memory than images do are rejected before they do."""

from pathlib import Path

from refiner.data.disk_space import format_bytes
from refiner.files import file_error

# Images shrink by a factor of two or three; masks and drawings by up to a hundred. Small files may by more.
_MAX_RATIO, _SMALL = 100, 2**26


def check_expansion(path: str | Path, stored: int, expanded: int) -> None:
    """Raise if a file of `stored` bytes would expand to an absurd number of bytes.

    >>> check_expansion("a.npz", stored=10**6, expanded=10**8)
    >>> check_expansion("a.npz", stored=10**6, expanded=8 * 10**9)
    Traceback (most recent call last):
    refiner.errors.DataError: a.npz: 1.0 MB that expand to 8.0 GB, expected at most 100 times as much
    """
    if expanded > max(_SMALL, _MAX_RATIO * stored):
        problem = f"{format_bytes(stored)} that expand to {format_bytes(expanded)}"
        expected = f"at most {_MAX_RATIO} times as much"
        raise file_error(path, f"{problem}, expected {expected}", expected)
