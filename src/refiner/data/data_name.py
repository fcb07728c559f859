"""What a name of data means: the bundled sample, a named dataset, or a path of the user's own."""

from pathlib import Path

from refiner.data.catalogue import ALIASES, DATASETS
from refiner.data.saved_dataset import is_saved_dataset
from refiner.files import file_error

SAMPLE = "sample"
OWN_DATA = ("folder", "npz", "parquet", "arrow")
"""The kinds of a user's own data with labels, each written as `KIND:PATH`."""
CSV = "csv"
"""The kind of tabular data, which only audits and recommendations take."""
OWN_DATA_TEXT = ", ".join(f"{kind}:PATH" for kind in OWN_DATA)


def is_named(name: str | None) -> bool:
    """Whether `name` is a dataset of `refiner data list`, or the alias of one; the sample is none of them.

    >>> is_named("cifar10"), is_named("path"), is_named("sample"), is_named("photos/")
    (True, True, False, False)
    """
    return name in DATASETS or name in ALIASES


def qualified_name(name: str) -> str:
    """The name with the kind of a path before it: `photos/` becomes `folder:photos/`.

    A path is a folder of images, an `.npz` file, a `.parquet` file or a folder of them, a folder that
    `datasets.Dataset.save_to_disk` wrote (`arrow:`), or one image (`image:`). Any other name stays as it is:
    `sample`, the names of datasets, which take precedence over files of the same name, names that have a
    kind, and paths where nothing is.

    >>> qualified_name("cifar10"), qualified_name("npz:a.npz"), qualified_name("."), qualified_name("nowhere")
    ('cifar10', 'npz:a.npz', 'folder:.', 'nowhere')
    """
    if name == SAMPLE or is_named(name) or name.partition(":")[0] in OWN_DATA:
        return name
    path = Path(name).expanduser()
    try:
        exists = path.exists()
    except OSError:  # such as a name that is too long
        return name
    return f"{_kind(path)}:{name}" if exists else name


def own_path(qualified: str) -> tuple[str, Path]:
    """The kind and the path of the user's own data; raises a DataError if nothing is there.

    >>> own_path("folder:photos")[0]
    'folder'
    >>> own_path("nowhere")
    Traceback (most recent call last):
    refiner.errors.DataError: nowhere: no such file or folder
    """
    kind, _, path = qualified.partition(":")
    if kind == CSV or qualified.lower().endswith(".csv"):
        expected = "images; tables are for `refiner audit` and `refiner recommend`"
        raise file_error(qualified, f"a table, expected {expected}", expected)
    if kind not in (*OWN_DATA, "image") or not path:
        raise file_error(qualified, "no such file or folder", "an existing file or folder")
    return kind, Path(path).expanduser()


def _kind(path: Path) -> str:
    if path.is_dir():
        if is_saved_dataset(path):
            return "arrow"
        return "parquet" if any(path.glob("*.parquet")) else "folder"
    return {".npz": "npz", ".parquet": "parquet", ".arrow": "arrow"}.get(path.suffix.lower(), "image")
