"""Deployments of Flower for tests: real processes on the loopback interface, ended after the test."""

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
    from refiner.federation import CheckpointConfig, Experiment
    from refiner.federation.flower.app_files import (
        run_config_for,
        write_app,
        write_clients,
        write_identities,
        write_server_settings,
    )
    from refiner.federation.flower.deployment import Deployment
    from refiner.federation.flower.engine import follow_run

FAULTY_CLIENT = Path(__file__).parent / "faulty_client.py"


def processes_in(folder: Path) -> list[str]:
    """The processes whose Flower home is below `folder`."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            if f"FLWR_HOME={folder}".encode() in environment:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command.strip():  # a zombie has none
                    processes.append(f"{entry.name}: {command}")
        except OSError:  # it has ended in the meantime
            continue
    return processes


def sockets_beyond_loopback(folder: Path) -> set[str]:
    """The sockets of those processes that are bound or connected to another interface than the loopback."""
    sockets = {
        row.split()[9]: row.split()[1:3]
        for table in ("tcp", "tcp6", "udp", "udp6")
        for row in Path("/proc/net", table).read_text().splitlines()[1:]
    }
    outside = set()
    for line in processes_in(folder):
        try:
            links = [os.readlink(entry) for entry in Path("/proc", line.split(":")[0], "fd").iterdir()]
        except OSError:  # it has ended in the meantime
            continue
        for link in links:
            pair = sockets.get(link.removeprefix("socket:[").removesuffix("]"), [])
            # Hexadecimal, last byte first: ...7F is 127.x; in IPv6 a mapped address or ::1.
            hosts = [end.split(":")[0] for end in pair]
            bound, peer = hosts if hosts else ("0100007F", "0100007F")
            loopback = ("7F", "01000000")
            if not bound.endswith(loopback) or not (peer.endswith(loopback) or set(peer) == {"0"}):
                outside.add(f"{line}: {pair}")
    return outside


class SocketWatch:
    """Looks once a second for sockets of a deployment beyond the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.seen: set[str] = set()
        self.looks = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(folder,), daemon=True)
        self._thread.start()

    def _look(self, folder: Path) -> None:
        while not self._end.wait(1):
            self.seen |= sockets_beyond_loopback(folder)
            self.looks += 1

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class RecordingProxy:
    """An HTTP proxy that rejects every request and records it.

    Without a network, telemetry fails when the host name is resolved, and no socket can be observed. Flower's
    HTTP libraries use a proxy if the environment names one, and leave the name resolution to it.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that name this proxy; a deployment itself exempts the loopback interface."""
        address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        variables = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), address)
        return variables | {name.upper(): value for name, value in variables.items()}

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(5)
                try:
                    request = connection.recv(1 << 12).partition(b"\r\n")[0].decode("latin-1")
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                except OSError as error:
                    request = f"none: {error}"
                self.requests.append(request)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # otherwise the thread stays in accept
        self._thread.join()
        self._listener.close()


def still_running(folder: Path, timeout: float = 30) -> list[str]:
    """The processes of a deployment that still run after a timeout; most end within seconds."""
    end = time.monotonic() + timeout
    while (processes := processes_in(folder)) and time.monotonic() < end:
        time.sleep(0.2)
    return processes


class Relay:
    """A TCP relay in front of a SuperLink that records the bytes that a node sends to it."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.sent = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                node, _ = self._listener.accept()
            except OSError:
                return
            try:
                link = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the SuperLink has ended
                node.close()
                continue
            threading.Thread(target=self._forward, args=(node, link, self.sent), daemon=True).start()
            threading.Thread(target=self._forward, args=(link, node, None), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if record is not None:
                    record += data
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                each.close()

    def close(self) -> None:
        self._listener.close()


@dataclass
class DeploymentUnderTest:
    """A deployment, the private folders of its clients, and the relay in front of the first one."""

    deployment: "Deployment"
    client_folders: list[Path]
    relay: Relay
    folder: Path
    faulty: bool = False
    """Whether the clients are those of faulty_client.py instead of the library's."""

    def train(self, experiment: "Experiment", out: Path, **config: Any) -> int:
        """Run an experiment on the nodes, wait for its end, and return the id of its run."""
        run = self.submit(experiment, out, **config)
        follow_run(self.deployment, run, CheckpointConfig(out))
        return int(run)

    def submit(self, experiment: "Experiment", out: Path, **changes: Any) -> str:
        """Submit an experiment to the nodes, and return the id of its run."""
        write_server_settings(experiment, out)
        aggregation = changes.get("aggregation", "plain")
        write_clients(experiment, self.client_folders, aggregation=aggregation)
        if aggregation != "plain":
            write_identities(self.client_folders, out)
        config = run_config_for(experiment, out, **{"deadline": 90.0, "node_timeout": 90.0, **changes})
        app = self.folder / f"app-{out.name}"
        if not self.faulty:
            return self.deployment.submit(write_app(app, config))
        write_app(app, config, client="faulty_client:app")
        (app / "faulty_client.py").write_text(FAULTY_CLIENT.read_text())
        return self.deployment.submit(app)

    def completed_log(self, run: str, last_file: Path, timeout: float = 330) -> str:
        """The server log of a run, once it has completed; its app writes `last_file` at the end."""
        end = time.monotonic() + timeout
        while not last_file.exists() and time.monotonic() < end:
            time.sleep(0.2)
        # Only now, as each call of `flwr` keeps a core busy for seconds.
        while not (status := self.deployment.status(run)).startswith("finished"):
            assert time.monotonic() < end, f"{run} is still {status}"
        log = self.deployment.server_log(run)
        assert status == "finished:completed", log
        return log


def deployed(
    folder: Path, nodes: int, *, faulty: bool = False, started: int | None = None
) -> "Iterator[DeploymentUnderTest]":
    """A deployment with this many clients; the test itself starts the nodes after the first `started`.

    Every test that uses it also tests that no process is left afterwards.
    """
    try:
        with Deployment(folder, environment={"OMP_NUM_THREADS": "1"}) as deployment:
            relay, watch = Relay(deployment.port), SocketWatch(folder)
            client_folders = [folder / f"client-{number}" for number in range(nodes)]
            for number, client_folder in enumerate(client_folders):
                client_folder.mkdir(mode=0o700)
                if started is not None and number >= started:
                    continue
                superlink = f"127.0.0.1:{relay.port}" if number == 0 else None
                deployment.add_node(client_folder, superlink=superlink)
            yield DeploymentUnderTest(deployment, client_folders, relay, folder, faulty)
            relay.close()
            watch.close()
            assert watch.looks and watch.seen == set()  # no process can be reached from other machines
    finally:
        assert still_running(folder) == []


@pytest.fixture
def recording_proxy() -> Iterator[RecordingProxy]:
    """A proxy for the processes that a test starts."""
    proxy = RecordingProxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module", autouse=True)
def _no_process_uses_a_proxy() -> Iterator[None]:
    """All processes that the tests of a module start have a recording proxy, and none sends it a request."""
    proxy = RecordingProxy()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in proxy.environment.items():
            patch.setenv(name, value)
        yield
    proxy.close()
    assert proxy.requests == []


# One per module, not per session: an idle deployment polls for work and slows down the other tests.
@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]
) -> "Iterator[DeploymentUnderTest]":
    """Two nodes, the first behind a relay, for all tests that leave them intact."""
    if not Path("/proc/self/environ").exists():
        missing("/proc")
    yield from deployed(tmp_path_factory.mktemp("shared"), 2)


@pytest.fixture
def faulty(tmp_path: Path) -> "Iterator[DeploymentUnderTest]":
    """Four nodes for one test, whose clients can be made to fail."""
    yield from deployed(tmp_path / "deployment", 4, faulty=True)


@pytest.fixture
def one_of_three(tmp_path: Path) -> "Iterator[DeploymentUnderTest]":
    """Three such clients; only the first one's node, behind a relay, is started."""
    yield from deployed(tmp_path / "deployment", 3, faulty=True, started=1)


@pytest.fixture
def beyond_loopback() -> Callable[[Path], set[str]]:
    """`beyond_loopback(folder)`: sockets of a deployment's processes beyond the loopback interface."""
    return sockets_beyond_loopback


@pytest.fixture
def running() -> Callable[[Path], list[str]]:
    """`running(folder)`: the processes of a deployment that still run after a timeout."""
    return still_running
