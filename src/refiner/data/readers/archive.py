"""The files of a folder, a zip or a tar alike, read without unpacking anything to disk."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from refiner.errors import DataError

# No data set that is read here has a larger file, or more of what is wanted of it.
_MOST, _MOST_IN_ALL = 2**31, 2**33


class Files:
    """Files by name, as seen from the top of where they lie, sorted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.txt").write_text("whole")
    ...     files = open_files(Path(folder), lambda name: name.endswith(".txt"))
    ...     print(files.names, files.read("a.txt"))
    ['a.txt'] b'whole'
    """

    def __init__(self, where: Path, names: list[str], read: Callable[[str], bytes]) -> None:
        self.where = where
        self.names = sorted(names)
        self._read = read

    def read(self, name: str) -> bytes:
        """The content of one of `names`."""
        with _named_errors(self.where):
            return self._read(name)

    def label(self, name: str) -> str:
        """A file as an error names it."""
        return f"{self.where}/{name}"


def is_archive(path: Path) -> bool:
    """Whether a file's name is that of a zip or a tar.

    >>> is_archive(Path("lfw.tgz")), is_archive(Path("train_32x32.mat"))
    (True, False)
    """
    return path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))


def open_files(path: Path, wanted: Callable[[str], bool]) -> Files:
    """The wanted files of a folder or an archive; hidden ones are not looked at.

    A zip stays open as long as its files are in use; of a tar, which can only be read from its start, what is
    wanted is kept in memory.
    """
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*")]
        names = [name for name in names if _seen(name) and wanted(name) and (path / name).is_file()]
        return Files(path, names, lambda name: (path / name).read_bytes())
    with _named_errors(path):
        if not path.name.lower().endswith(".zip"):
            content = _of_tar(path, wanted)
            return Files(path, list(content), content.__getitem__)
        archive = zipfile.ZipFile(path)
        held = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        names = [name for name in held if _seen(name) and wanted(name)]
        _limit(path, [held[name].file_size for name in names])
        return Files(path, names, archive.read)


def gather(path: Path, wanted: Collection[str]) -> dict[str, bytes] | None:
    """Files by their last name, at the top of a folder or an archive or one folder down.

    None if none of them is there; an error if only some of them are.

    >>> gather(Path("absent.tgz"), ["a"]) is None
    True
    """
    if path.is_dir():
        places = {name: [path / name, *sorted(path.glob(f"*/{name}"))] for name in wanted}
        files = {name: [file for file in held if file.is_file()] for name, held in places.items()}
        found = {name: held[0].read_bytes() for name, held in files.items() if held}
    elif path.is_file() and is_archive(path):
        inside = open_files(path, lambda name: name.count("/") < 2 and name.rsplit("/", 1)[-1] in wanted)
        found = {name.rsplit("/", 1)[-1]: inside.read(name) for name in reversed(inside.names)}
    else:
        return None
    if found and len(found) < len(wanted):
        missing = [name for name in wanted if name not in found]
        raise DataError(f"{path}: {', '.join(missing)} missing")
    return found or None


def _of_tar(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    content: dict[str, bytes] = {}
    sizes: list[int] = []
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if not member.isreg() or not _seen(name) or not wanted(name):
                continue
            sizes.append(member.size)
            _limit(path, sizes)
            stream = archive.extractfile(member)
            content[name] = stream.read() if stream else b""
        # To its last byte: the checksum of a packed tar stands at its end.
        while archive.fileobj is not None and archive.fileobj.read(2**20):
            pass
    return content


def _seen(name: str) -> bool:
    return not any(part.startswith(".") for part in name.split("/"))


def _limit(path: Path, sizes: list[int]) -> None:
    if max(sizes, default=0) > _MOST or sum(sizes) > _MOST_IN_ALL:
        raise DataError(f"{path}: more than {_MOST_IN_ALL:,} bytes, or {_MOST:,} in a file, once unpacked")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: a broken or truncated archive ({reason})") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error})") from error
    except RuntimeError as error:  # a zip with a password
        raise DataError(f"{path}: can't be read ({error})") from error
