"""A SuperLink and SuperNodes as processes on this machine, which end with the process that started them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from refiner.errors import RefinerError
from refiner.federation.flower import supervisor

_BIN = Path(sys.executable).parent
_CONNECTION = "here"
NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Otherwise an app's dependencies are installed for every run, over the network.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment variables with which Flower's processes contact no other host; set them wherever one starts."""


def free_port() -> int:
    """A TCP port of the loopback interface that is free at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class DeployedProcess:
    """A process of the deployment and the supervisor that ends it."""

    name: str
    supervisor: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def pid(self) -> int:
        """The process id of the program itself."""
        return int((self.folder / "pid").read_text())

    def exit_code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.supervisor.poll()

    def log(self, lines: int = 5) -> str:
        """The last lines of its output."""
        text = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


@dataclass
class Deployment:
    """One SuperLink and the SuperNodes added to it, for use in a `with` statement.

    Args:
        folder: Folder for the processes' logs and Flower homes.
        options: Options of `flower-superlink`, such as those for TLS and authentication.
        connection: How `flwr` connects to the SuperLink: a line of its configuration.
        environment: Additional environment variables of all processes.
    """

    folder: Path
    options: Sequence[str] = ("--insecure",)
    connection: str = "insecure = true"
    environment: dict[str, str] = field(default_factory=dict)
    link: DeployedProcess = field(init=False)
    nodes: list[DeployedProcess] = field(init=False, default_factory=list)
    port: int = field(init=False, default_factory=free_port)

    def __enter__(self) -> Self:
        scheme = "http" if "--insecure" in self.options else "https"
        command = ["flower-superlink", *self.options, "--host", "127.0.0.1", "--port", str(self.port)]
        self.link = self._start("superlink", command)
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        lines = ["[superlink]", f'default = "{_CONNECTION}"', f"[superlink.{_CONNECTION}]"]
        lines += [f'address = "{self.address}"', self.connection, ""]
        (home / "config.toml").write_text("\n".join(lines), encoding="utf-8")
        try:
            self._wait_until_healthy(scheme)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
        return f"127.0.0.1:{self.port}"

    def add_node(
        self,
        client: Path,
        options: Sequence[str] = ("--insecure",),
        *,
        superlink: str | None = None,
    ) -> DeployedProcess:
        """Start the SuperNode of the client whose private folder is `client`."""
        config = f"folder={json.dumps(str(client))}"
        command = ["flower-supernode", *options, "--superlink", superlink or self.address]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config]
        node = self._start(f"supernode-{len(self.nodes)}", command)
        self.nodes.append(node)
        return node

    def submit(self, app: Path) -> str:
        """Submit a Flower app, and return the id of its run."""
        answer = self.flwr("run", str(app), _CONNECTION, "--format", "json")
        if not answer.get("success"):
            raise RefinerError(f"flwr run: {_shorten(answer.get('error-message', answer))}")
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """The status of a run, such as "running" or "finished:completed"."""
        answer = self.flwr("list", _CONNECTION, "--run-id", run, "--format", "json")
        runs = answer.get("runs") or [{}]
        return str(runs[0].get("status", "unknown"))

    def server_log(self, run: str) -> str:
        """The log of a run's ServerApp so far."""
        return self._call("log", run, _CONNECTION, "--show").stdout

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """The JSON that a `flwr` command prints."""
        completed = self._call(*arguments)
        start = completed.stdout.find("{")
        with contextlib.suppress(ValueError):
            answer, _ = json.JSONDecoder().raw_decode(completed.stdout[max(start, 0) :])
            if isinstance(answer, dict):
                return answer
        raise RefinerError(f"flwr {arguments[0]}: {_shorten(completed.stderr or completed.stdout)}")

    def _call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(_BIN / "flwr"), *arguments],
            env=self._environment("flwr"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def check(self) -> None:
        """Raise if the SuperLink has ended."""
        if self.link.exit_code() is not None:
            raise RefinerError(f"flower-superlink ended: {_shorten(self.link.log())}")

    def close(self) -> None:
        """End all processes and wait for them."""
        processes = [*self.nodes, self.link]
        for process in processes:
            if process.exit_code() is None:
                process.supervisor.terminate()
        for process in processes:
            try:
                process.supervisor.wait(20)
            except subprocess.TimeoutExpired:
                process.supervisor.kill()
                process.supervisor.wait()

    def _start(self, name: str, command: Sequence[str]) -> DeployedProcess:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, supervisor.__file__, str(folder / "pid")]
        program += [str(_BIN / command[0]), *command[1:]]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                program,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return DeployedProcess(name, process, folder)

    def _environment(self, name: str) -> dict[str, str]:
        # Each process has its own home, as nodes that install the same app at the same time would conflict.
        paths = {
            "FLWR_HOME": str(self.folder / name),
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        # Flower's default is 1 s. Each node polls; a shorter interval would take CPU time from the clients.
        polling = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
        return bypass_proxies_on_loopback(
            {**os.environ, **polling, **self.environment, **NO_TELEMETRY, **paths}
        )

    def _wait_until_healthy(self, scheme: str, timeout: float = 60) -> None:
        import ssl

        # This checks only that the SuperLink answers; nodes verify its certificate themselves.
        https = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        end = time.monotonic() + timeout
        while True:
            self.check()
            try:
                opener.open(f"{scheme}://{self.address}/health", timeout=5).close()
                return
            except OSError:
                if time.monotonic() >= end:
                    raise RefinerError(
                        f"flower-superlink: no answer within {timeout:g} s: {_shorten(self.link.log())}"
                    ) from None
            time.sleep(0.1)


def bypass_proxies_on_loopback(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the loopback addresses added to those that no proxy is used for.

    >>> bypass_proxies_on_loopback({"NO_PROXY": "here.example"})["no_proxy"]
    'here.example,127.0.0.1,localhost,::1'
    """
    existing = environment.get("no_proxy") or environment.get("NO_PROXY")
    hosts = ",".join([*([existing] if existing else []), "127.0.0.1", "localhost", "::1"])
    return {**environment, "no_proxy": hosts, "NO_PROXY": hosts}


def _shorten(text: object) -> str:
    return " ".join(str(text).split())[-300:]
