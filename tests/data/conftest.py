"""Small datasets in the official layouts, made of the images of the bundled sample."""

import io
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from refiner.data import load_sample

Pixels = np.ndarray[Any, Any]


@pytest.fixture(scope="session")
def sample_pixels() -> Pixels:
    """The sample as uint8 [200, 3, 32, 32]."""
    return (load_sample().images * 255).round().byte().numpy()


@pytest.fixture(scope="session")
def sample_labels() -> list[int]:
    return load_sample().labels.tolist()


def _short(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()


def _batch(pixels: Pixels, labels: Mapping[str, Sequence[int]]) -> bytes:
    """A batch as Python 2's cPickle wrote CIFAR's, opcode by opcode."""
    rows = pixels.reshape(len(pixels), -1)
    out = b"\x80\x02}q\x01(" + _short("batch_label") + b"q\x02" + _short("training batch 1 of 5") + b"q\x03"
    for key, values in labels.items():
        out += _short(key) + b"]q\x04(" + b"".join(b"K" + bytes([value]) for value in values) + b"e"
    out += _short("data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85"
    out += (
        _short("b")
        + b"\x87Rq\t(K\x01"
        + b"M"
        + struct.pack("<H", len(rows))
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\n"
    )
    out += (
        _short("u1")
        + b"K\x00K\x01\x87Rq\x0b(K\x03"
        + _short("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    out += b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    names = b"".join(
        _short(f"leptodactylus_s_{n:06}.png") + b"r" + struct.pack("<I", 300 + n) for n in range(len(rows))
    )
    return out + _short("filenames") + b"]q\x0c(" + names + b"eu."


@pytest.fixture(scope="session")
def batch() -> Callable[[Pixels, Mapping[str, Sequence[int]]], bytes]:
    """`batch(pixels, {"labels": […]})`: a pickled batch as Python 2 wrote it."""
    return _batch


def _write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="session")
def write_tar() -> Callable[[Path, Mapping[str, bytes]], Path]:
    return _write_tar


@pytest.fixture(scope="session")
def write_zip() -> Callable[[Path, Mapping[str, bytes]], Path]:
    """`write_zip(path, files)`: a zip of them."""

    def write(path: Path, files: Mapping[str, bytes]) -> Path:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path

    return write


@pytest.fixture(scope="session")
def write_files() -> Callable[[Path, Mapping[str, bytes]], Path]:
    """`write_files(folder, files)`: the files in that folder."""

    def write(folder: Path, files: Mapping[str, bytes]) -> Path:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    return write


@pytest.fixture(scope="session")
def cifar10_files(sample_pixels: Pixels, sample_labels: list[int]) -> dict[str, bytes]:
    """CIFAR-10 of 60 images: five batches of ten, and ten to test."""
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    cuts = [slice(start, start + 10) for start in range(0, 60, 10)]
    return {
        f"cifar-10-batches-py/{name}": _batch(sample_pixels[cut], {"labels": sample_labels[cut]})
        for name, cut in zip(names, cuts, strict=True)
    }


@pytest.fixture(scope="session")
def jpeg(sample_pixels: Pixels) -> Callable[..., bytes]:
    """`jpeg(7, side)`: an image of the sample as a JPEG of that side."""

    def write(number: int, side: int = 32) -> bytes:
        stream = io.BytesIO()
        image = Image.fromarray(sample_pixels[number].transpose(1, 2, 0))
        image.resize((side, side)).save(stream, "JPEG", quality=95)
        return stream.getvalue()

    return write


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the cache of whoever runs it."""
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path_factory.mktemp("cache")))


class Server:
    """A server on loopback with one file, and the faults that were asked for."""

    def __init__(self) -> None:
        self.content = b""
        self.ranges = True
        """Whether it supports range requests."""
        self.cuts: list[int] = []
        """After how many bytes each of the next answers is cut off."""
        self.length: int | None = None
        """A false Content-Length."""
        self.chunked = False
        self.status = 200
        self.asked: list[str] = []
        """The range of each request."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Silent."""

            def do_GET(self) -> None:
                outer.answer(self)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/file"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        asked = handler.headers.get("Range", "")
        self.asked.append(asked)
        if self.status != 200:
            return handler.send_error(self.status)
        if handler.path == "/moved":
            handler.send_response(302)
            handler.send_header("Location", "/file")
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start >= len(self.content) > 0:
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        body = self.content[start:]
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(body) if self.length is None else self.length))
        handler.end_headers()
        cut = self.cuts.pop(0) if self.cuts else len(body)
        if not self.chunked:
            handler.wfile.write(body[:cut])
            return None
        handler.wfile.write(b"%x\r\n%b\r\n" % (len(body[:cut]), body[:cut]))
        if cut >= len(body):
            handler.wfile.write(b"0\r\n\r\n")
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of one file on loopback, past any proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()
