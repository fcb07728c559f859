"""Arrays from `.npz` files, read without pickle."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.data.expansion import check_expansion
from refiner.errors import DataError
from refiner.files import file_error, short_reason


def load_npz(path: Path) -> Mapping[str, NDArray[Any]]:
    """The arrays of an `.npz` by name.

    >>> load_npz(Path("absent.npz"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.npz: no such file
    """
    if not path.is_file():
        raise file_error(path, "no such file", "an existing file")
    try:
        # NumPy does not close a broken file that it opened itself.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            expanded = sum(entry.file_size for entry in archive.zip.infolist())
            check_expansion(path, path.stat().st_size, expanded)
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise file_error(
            path, f"not an .npz of plain arrays ({short_reason(error)})", "an .npz of plain arrays"
        ) from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, TokenError) as error:
        raise file_error(path, f"a broken .npz ({short_reason(error)})", "a complete .npz") from error
