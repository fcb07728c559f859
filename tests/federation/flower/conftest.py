"""Deployments of Flower: real processes on loopback, in folders of their own, gone afterwards."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

if find_spec("flwr") is None:
    if os.environ.get("REFINER_REQUIRE_ALL") == "1":
        raise pytest.UsageError("flwr is missing, and REFINER_REQUIRE_ALL=1")
    collect_ignore_glob = ["test_*.py"]
else:
    from refiner.federation import Experiment, Keeping
    from refiner.federation.flower.deployment import Deployment
    from refiner.federation.flower.study import (
        follow,
        rules_of,
        write_app,
        write_clients,
        write_identities,
        write_study,
    )

FAULTY = Path(__file__).parent / "faulty_client.py"


def processes_of(folder: Path) -> list[str]:
    """What runs with its Flower home below `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            if f"FLWR_HOME={folder}".encode() in environment:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command.strip():  # a zombie has none
                    found.append(f"{entry.name}: {command}")
        except OSError:  # gone in the meantime
            continue
    return found


def strangers(folder: Path) -> set[str]:
    """Addresses beyond the loopback to which sockets of those processes are bound or connected."""
    sockets = {
        row.split()[9]: row.split()[1:3]
        for table in ("tcp", "tcp6", "udp", "udp6")
        for row in Path("/proc/net", table).read_text().splitlines()[1:]
    }
    found = set()
    for line in processes_of(folder):
        try:
            links = [os.readlink(entry) for entry in Path("/proc", line.split(":")[0], "fd").iterdir()]
        except OSError:  # gone in the meantime
            continue
        for link in links:
            pair = sockets.get(link.removeprefix("socket:[").removesuffix("]"), [])
            # Hexadecimal, the last byte first: …7F is 127.x, in IPv6 as a mapped one or as ::1.
            hosts = [end.split(":")[0] for end in pair]
            bound, peer = hosts if hosts else ("0100007F", "0100007F")
            near = ("7F", "01000000")
            if not bound.endswith(near) or not (peer.endswith(near) or set(peer) == {"0"}):
                found.add(f"{line}: {pair}")
    return found


class Watch:
    """Looks once a second for sockets that leave the loopback."""

    def __init__(self, folder: Path) -> None:
        self.seen: set[str] = set()
        self.looks = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(folder,), daemon=True)
        self._thread.start()

    def _look(self, folder: Path) -> None:
        while not self._end.wait(1):
            self.seen |= strangers(folder)
            self.looks += 1

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Trap:
    """A proxy that leads nowhere, and keeps what it was asked for.

    Without a network a call home fails at the name of the host, with no socket to be seen. Flower calls by
    libraries that go to a proxy, if their environment names one, and leave the name to it.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """Leads into it; that the loopback is not behind a proxy is for a deployment to say."""
        here = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        told = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), here)
        return told | {name.upper(): value for name, value in told.items()}

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:  # closed
                return
            with caller:
                caller.settimeout(5)
                try:
                    asked = caller.recv(1 << 12).partition(b"\r\n")[0].decode("latin-1")
                    caller.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                except OSError as error:
                    asked = f"nothing: {error}"
                self.calls.append(asked)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # else it stays in accept
        self._thread.join()
        self._listener.close()


def until_gone(folder: Path, patience: float = 30) -> list[str]:
    """What of it still runs after a while; children notice within seconds that their parent is gone."""
    end = time.monotonic() + patience
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


class Tap:
    """A relay before a SuperLink that keeps a copy of what a node sends to it."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.sent = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the SuperLink has ended
                near.close()
                continue
            threading.Thread(target=self._relay, args=(near, far, self.sent), daemon=True).start()
            threading.Thread(target=self._relay, args=(far, near, None), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket, copy: bytearray | None) -> None:
        try:
            while held := source.recv(1 << 16):
                if copy is not None:
                    copy += held
                target.sendall(held)
        except OSError:
            pass
        finally:
            for each in (source, target):
                each.close()

    def close(self) -> None:
        self._listener.close()


@dataclass
class Bench:
    """A deployment, the folders of its clients, and the tap on the first of them."""

    deployment: "Deployment"
    homes: list[Path]
    tap: Tap
    folder: Path
    clients: str | None = None
    """The module of the clients, if it is not the library's."""

    def train(self, experiment: "Experiment", out: Path, **rules: Any) -> None:
        """An experiment on the nodes, to its end."""
        follow(self.deployment, self.submit(experiment, out, **rules), out, Keeping(out))

    def submit(self, experiment: "Experiment", out: Path, **rules: Any) -> str:
        """An experiment on the nodes; the id of its run."""
        write_study(experiment, out)
        way = rules.get("aggregation", "plain")
        write_clients(experiment, self.homes, aggregation=way)
        if way != "plain":
            write_identities(self.homes, out)
        told = rules_of(experiment, out, **{"deadline": 90.0, "patience": 90.0, **rules})
        app = self.folder / f"app-{out.name}"
        if self.clients is None:
            return self.deployment.submit(write_app(app, told))
        write_app(app, told, client="faulty_client:app")
        (app / "faulty_client.py").write_text(FAULTY.read_text())
        return self.deployment.submit(app)

    def said_by(self, run: str, left: Path, patience: float = 120) -> str:
        """What the server of any app's run said, once it has ended; its last deed is to leave a file."""
        end = time.monotonic() + patience
        while not left.exists() and time.monotonic() < end:
            time.sleep(0.2)
        # Asked for only now: each call of `flwr` keeps a core busy for seconds.
        while not (status := self.deployment.status(run)).startswith("finished"):
            assert time.monotonic() < end, f"{run} is still {status}"
        said = self.deployment.said(run)
        assert status == "finished:completed", said
        return said


def bench(
    folder: Path, nodes: int, clients: str | None = None, started: int | None = None
) -> "Iterator[Bench]":
    """A deployment of so many nodes, of which the test itself starts those after the first `started`.

    That nothing is left of it is part of every test that uses it.
    """
    try:
        with Deployment(folder, environment={"OMP_NUM_THREADS": "1"}) as deployment:
            tap, watch = Tap(deployment.port), Watch(folder)
            homes = [folder / f"client-{number}" for number in range(nodes)]
            for number, home in enumerate(homes):
                home.mkdir(mode=0o700)
                if started is not None and number >= started:
                    continue
                behind = f"127.0.0.1:{tap.port}" if number == 0 else None
                deployment.add_node(home, superlink=behind)
            yield Bench(deployment, homes, tap, folder, clients)
            tap.close()
            watch.close()
            assert watch.looks and watch.seen == set()  # nobody is reached from elsewhere
    finally:
        assert until_gone(folder) == []


@pytest.fixture
def trap() -> Iterator[Trap]:
    """One into which a test may lead."""
    held = Trap()
    yield held
    held.close()


@pytest.fixture(scope="module", autouse=True)
def _nobody_calls_home() -> Iterator[None]:
    """All programs that the tests of a module start have a trap for a proxy, and none walks into it."""
    held = Trap()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in held.environment.items():
            patch.setenv(name, value)
        yield
    held.close()
    assert held.calls == []


# Of a module, not of all: while it is up, it asks for work and slows the others down.
@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]) -> "Iterator[Bench]":
    """Two nodes, the first behind a tap, for all tests that leave them sound."""
    if not Path("/proc/self/environ").exists():
        missing("/proc")
    yield from bench(tmp_path_factory.mktemp("shared"), 2)


@pytest.fixture
def faulty(tmp_path: Path) -> "Iterator[Bench]":
    """Four nodes of their own whose clients a test can break."""
    yield from bench(tmp_path / "deployment", 4, clients="faulty")


@pytest.fixture
def secured(tmp_path: Path) -> "Iterator[Bench]":
    """Three such nodes, the first behind a tap; the others are not started yet."""
    yield from bench(tmp_path / "deployment", 3, clients="faulty", started=1)


@pytest.fixture
def beyond() -> Callable[[Path], set[str]]:
    """`beyond(folder)`: which sockets of what runs with its Flower home below a folder leave the loopback."""
    return strangers


@pytest.fixture
def gone() -> Callable[[Path], list[str]]:
    """`gone(folder)`: what still runs after a while with its Flower home below a folder."""
    return until_gone
