"""The files of a folder, a zip or a tar, read the same way and without unpacking anything to disk."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from refiner.files import file_error, short_reason

# No dataset read here has a larger file or more data in all: such an archive is a decompression bomb.
_MAX_FILE_BYTES, _MAX_TOTAL_BYTES = 2**31, 2**33


class Files:
    """Files by their path within a folder or archive, sorted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.txt").write_text("content")
    ...     files = open_files(Path(folder), lambda name: name.endswith(".txt"))
    ...     print(files.names, files.read("a.txt"))
    ['a.txt'] b'content'
    """

    def __init__(self, container: Path, names: list[str], read: Callable[[str], bytes]) -> None:
        self.container = container
        self.names = sorted(names)
        self._read = read

    def read(self, name: str) -> bytes:
        """The content of one of `names`."""
        with _archive_errors(self.container):
            return self._read(name)

    def title(self, name: str) -> str:
        """The name of a file in errors."""
        return f"{self.container}/{name}"


def is_archive(path: Path) -> bool:
    """Whether a file's name is that of a zip or a tar.

    >>> is_archive(Path("lfw.tgz")), is_archive(Path("train_32x32.mat"))
    (True, False)
    """
    return path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))


def open_files(path: Path, is_wanted: Callable[[str], bool]) -> Files:
    """The wanted files of a folder or an archive; hidden files are ignored.

    A zip stays open as long as its files are in use. A tar can only be read from its start, so the wanted
    files of a tar are kept in memory.
    """
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*")]
        names = [name for name in names if _is_visible(name) and is_wanted(name) and (path / name).is_file()]
        return Files(path, names, lambda name: (path / name).read_bytes())
    with _archive_errors(path):
        if not path.name.lower().endswith(".zip"):
            content = _read_tar(path, is_wanted)
            return Files(path, list(content), content.__getitem__)
        archive = zipfile.ZipFile(path)
        members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        names = [name for name in members if _is_visible(name) and is_wanted(name)]
        _check_sizes(path, [members[name].file_size for name in names])
        return Files(path, names, archive.read)


def find_named_files(path: Path, names: Collection[str]) -> Files | None:
    """The files of these names, at the top of a folder or an archive or one folder down.

    Returns None if none of them is there, and raises if some are and others are not.

    >>> find_named_files(Path("absent.tgz"), ["a"]) is None
    True
    """
    if path.is_dir():
        candidates = {name: [path / name, *sorted(path.glob(f"*/{name}"))] for name in names}
        existing = {name: [file for file in files if file.is_file()] for name, files in candidates.items()}
        located = {name: files[0] for name, files in existing.items() if files}
        files = Files(path, list(located), lambda name: located[name].read_bytes())
    elif path.is_file() and is_archive(path):
        inside = open_files(path, lambda name: name.count("/") < 2 and name.rsplit("/", 1)[-1] in names)
        paths = {name.rsplit("/", 1)[-1]: name for name in reversed(inside.names)}
        files = Files(path, list(paths), lambda name: inside.read(paths[name]))
    else:
        return None
    if files.names and len(files.names) < len(names):
        missing = [name for name in names if name not in files.names]
        raise file_error(path, f"{', '.join(missing)} missing", f"the files {', '.join(names)}")
    return files if files.names else None


def _read_tar(path: Path, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
    content: dict[str, bytes] = {}
    sizes: list[int] = []
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if not member.isreg() or not _is_visible(name) or not is_wanted(name):
                continue
            sizes.append(member.size)
            _check_sizes(path, sizes)
            stream = archive.extractfile(member)
            content[name] = stream.read() if stream else b""
        # Read to the last byte: the checksum of a compressed tar is at its end.
        while archive.fileobj is not None and archive.fileobj.read(2**20):
            pass
    return content


def _is_visible(name: str) -> bool:
    return not any(part.startswith(".") for part in name.split("/"))


def _check_sizes(path: Path, sizes: list[int]) -> None:
    if max(sizes, default=0) > _MAX_FILE_BYTES or sum(sizes) > _MAX_TOTAL_BYTES:
        raise file_error(
            path,
            f"more than {_MAX_TOTAL_BYTES:,} bytes, or {_MAX_FILE_BYTES:,} in one file, once unpacked",
            f"at most {_MAX_TOTAL_BYTES:,} bytes, and {_MAX_FILE_BYTES:,} in one file",
        )


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Turns the errors of broken archives into one line that names the file."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise file_error(path, f"a broken or truncated archive ({reason})", "a complete archive") from error
    except OSError as error:
        raise file_error(
            path, f"can't be read ({error.strerror or error})", "an archive that can be read"
        ) from error
    except RuntimeError as error:  # a zip with a password
        raise file_error(
            path, f"can't be read ({short_reason(error)})", "an archive that can be read"
        ) from error
