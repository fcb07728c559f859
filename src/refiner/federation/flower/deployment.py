"""A SuperLink and its SuperNodes as processes on this machine, in a folder of their own; all end with it."""

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
from refiner.federation.flower import guard

_BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Else an app's dependencies are installed anew for every run, over the network.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""What keeps Flower's processes from calling home; set it wherever one of them is started."""


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@dataclass
class Running:
    """A process of the deployment, below its guard."""

    name: str
    guard: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def pid(self) -> int:
        """Of the program itself."""
        return int((self.folder / "pid").read_text())

    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self.guard.poll()

    def log(self, lines: int = 5) -> str:
        """The end of what it said."""
        text = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


@dataclass
class Deployment:
    """One SuperLink, and SuperNodes as they are added; to be used in a `with` statement."""

    folder: Path
    options: Sequence[str] = ("--insecure",)
    """Of the SuperLink; TLS and authentication stand here."""
    connection: str = "insecure = true"
    """How `flwr` reaches it: a line of its configuration."""
    environment: dict[str, str] = field(default_factory=dict)
    link: Running = field(init=False)
    nodes: list[Running] = field(init=False, default_factory=list)
    port: int = field(init=False, default_factory=free_port)

    def __enter__(self) -> Self:
        scheme = "http" if "--insecure" in self.options else "https"
        command = ["flower-superlink", *self.options, "--host", "127.0.0.1", "--port", str(self.port)]
        self.link = self._start("superlink", command)
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        told = ["[superlink]", 'default = "here"', "[superlink.here]", f'address = "{self.address}"']
        (home / "config.toml").write_text("\n".join([*told, self.connection, ""]), encoding="utf-8")
        try:
            self._until_healthy(scheme)
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
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def add_node(
        self,
        client: Path,
        options: Sequence[str] = ("--insecure",),
        *,
        superlink: str | None = None,
    ) -> Running:
        """Start the SuperNode of the client whose own folder is `client`."""
        config = f"folder={json.dumps(str(client))}"
        command = ["flower-supernode", *options, "--superlink", superlink or self.address]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config]
        node = self._start(f"supernode-{len(self.nodes)}", command)
        self.nodes.append(node)
        return node

    def submit(self, app: Path) -> str:
        """Submit a Flower app; the id of its run."""
        told = self.flwr("run", str(app), "here", "--format", "json")
        if not told.get("success"):
            raise RefinerError(f"flwr run: {_short(told.get('error-message', told))}")
        return str(told["run-id"])

    def status(self, run: str) -> str:
        """How a run is, such as "running" or "finished:completed"."""
        told = self.flwr("list", "here", "--run-id", run, "--format", "json")
        runs = told.get("runs") or [{}]
        return str(runs[0].get("status", "unknown"))

    def said(self, run: str) -> str:
        """What the server of a run has said so far."""
        return self._call("log", run, "here", "--show").stdout

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """What a `flwr` command answers as JSON."""
        done = self._call(*arguments)
        start = done.stdout.find("{")
        with contextlib.suppress(ValueError):
            found, _ = json.JSONDecoder().raw_decode(done.stdout[max(start, 0) :])
            if isinstance(found, dict):
                return found
        raise RefinerError(f"flwr {arguments[0]}: {_short(done.stderr or done.stdout)}")

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
        """Refuse to go on without the SuperLink."""
        if self.link.code() is not None:
            raise RefinerError(f"flower-superlink ended: {_short(self.link.log())}")

    def close(self) -> None:
        """End every process; nothing of it is left."""
        started = [*self.nodes, self.link]
        for each in started:
            if each.code() is None:
                each.guard.terminate()
        for each in started:
            try:
                each.guard.wait(20)
            except subprocess.TimeoutExpired:
                each.guard.kill()
                each.guard.wait()

    def _start(self, name: str, command: Sequence[str]) -> Running:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, guard.__file__, str(folder / "pid"), str(_BIN / command[0]), *command[1:]]
        with (folder / "log").open("wb") as log:
            held = subprocess.Popen(
                program,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(name, held, folder)

    def _environment(self, name: str) -> dict[str, str]:
        # A home for each: nodes that install the same app at the same time would tread on each other.
        own = {
            "FLWR_HOME": str(self.folder / name),
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        # A second if not told. Each node asks that often, so that more often would cost the clients cores.
        brisk = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
        return beside_proxies({**os.environ, **brisk, **self.environment, **QUIET, **own})

    def _until_healthy(self, scheme: str, patience: float = 60) -> None:
        import ssl

        # Only whether it answers: whom a node trusts is the node's own check.
        trust = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), trust)
        end = time.monotonic() + patience
        while True:
            self.check()
            try:
                direct.open(f"{scheme}://{self.address}/health", timeout=5).close()
                return
            except OSError:
                if time.monotonic() >= end:
                    raise RefinerError(
                        f"flower-superlink: not up in {patience:g} s: {_short(self.link.log())}"
                    ) from None
            time.sleep(0.1)


def beside_proxies(environment: dict[str, str]) -> dict[str, str]:
    """The same, with the loopback among what no proxy is asked for.

    >>> beside_proxies({"NO_PROXY": "here.example"})["no_proxy"]
    'here.example,127.0.0.1,localhost,::1'
    """
    held = environment.get("no_proxy") or environment.get("NO_PROXY")
    direct = ",".join([*([held] if held else []), "127.0.0.1", "localhost", "::1"])
    return {**environment, "no_proxy": direct, "NO_PROXY": direct}


def _short(text: object) -> str:
    return " ".join(str(text).split())[-300:]
