"""Flower's processes contact no other host, and the tests' own means to detect that work."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from refiner.federation.flower import deployment
from refiner.federation.flower.deployment import Deployment, free_port

TELEMETRY = {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_DISABLE_UPDATE_CHECK": "0"}
LISTEN = "import socket, sys; server = socket.create_server((sys.argv[1], 0)); print(flush=True); input()"


@pytest.mark.flower
@pytest.mark.parametrize("enabled", [False, True], ids=["disabled", "enabled"])
def test_a_supernode_sends_telemetry_only_if_enabled(
    enabled: bool, recording_proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperNode without a SuperLink ends at once; with telemetry it reports its start and its end."""
    if enabled:
        monkeypatch.setattr(deployment, "NO_TELEMETRY", {**deployment.NO_TELEMETRY, **TELEMETRY})
    nodes = Deployment(tmp_path, environment=recording_proxy.environment)
    unused = f"127.0.0.1:{free_port()}"
    node = nodes.add_node(tmp_path / "client", ["--insecure", "--max-retries", "0"], superlink=unused)
    try:
        assert node.supervisor.wait(60) != 0
    finally:
        node.supervisor.terminate()
        node.supervisor.wait()
    hosts = {request.split()[1] for request in recording_proxy.requests}
    assert hosts == ({"telemetry.flower.ai:443", "api.flower.ai:443"} if enabled else set()), node.log(50)


@pytest.mark.parametrize(("host", "count"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_sockets_beyond_the_loopback_interface_are_detected(
    host: str,
    count: int,
    beyond_loopback: Callable[[Path], set[str]],
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
) -> None:
    if not Path("/proc/net/tcp").exists():
        missing("/proc")
    program, environment = [sys.executable, "-c", LISTEN, host], {**os.environ, "FLWR_HOME": str(tmp_path)}
    with subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sockets = beyond_loopback(tmp_path)
        process.communicate(b"\n")
    assert len(sockets) == count
